"""What people attach to the messages of a thread, for the model, and what attaches files to the answer.

References alone are stored. The bytes are read from Slack where the model must be asked, while there is room for them.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NotRequired, TypedDict

import aiohttp
from pydantic_ai import BinaryContent, ModelMessage, ModelRequest, RunContext, UserContent, UserPromptPart
from yarl import URL

from surelane.slack import object_in, text_in
from surelane_agents.agent_settings import agent_settings
from surelane_agents.context.room import FileRoom
from surelane_agents.context.thread import LONGEST_NAME, ThreadMessage, files_of, named
from surelane_agents.errors import UnavailableError
from surelane_agents.models.carried import forget, marked
from surelane_service.outbound import received
from surelane_worker import Context, Event
from surelane_worker.handling.context import attempt_of
from surelane_worker.slack.client import PASSING, UNCLEAR, is_at, origin_of, slack_error, unknown_whether_done
from surelane_worker.worker_settings import WorkerSettings

LARGEST = 10 * 2**20
"""Bytes of a file that the model gets."""
TOO_LARGE = f"it has more than {LARGEST:,} bytes"
LONGEST_TEXT = 50_000
"""Characters of a text file that the model gets. The rest is cut."""
LONGEST_WAIT = 300.0
"""Seconds that a turn waits for other turns' files to leave the memory. Then the attempt fails."""
TEXTS = frozenset({"application/json", "application/xml", "application/yaml", "application/javascript"})
"""The types of texts beside ``text/…``."""
ORIGINS = frozenset({URL("https://files.slack.com"), URL("https://files.slack-gov.com")})
"""Where Slack keeps files. The token is sent nowhere else."""
BEGINNINGS = {
    "image/png": (b"\x89PNG",),
    "image/jpeg": (b"\xff\xd8",),
    "image/gif": (b"GIF8",),
    "image/webp": (b"RIFF",),
    "application/pdf": (b"%PDF", b"\xef\xbb\xbf%PDF"),
}
"""What the images and PDF of a model begin with. Its server refuses a whole request for one file of another type."""
DELETED = "it was deleted"
UNSHARED = "Slack does not find it, or it is not shared with the app"
SIGN_IN = "Slack asks to sign in: the app may lack the right files:read, or the file is not shared with it"
REFUSED = {
    "file_deleted": DELETED,
    "file_not_found": UNSHARED,
    "file_not_visible": UNSHARED,
    "not_visible": UNSHARED,
    "access_denied": "the app may not see it",
    "missing_scope": "the app lacks the right files:read",
    "tombstone": DELETED,
    "hidden_by_limit": "Slack hides it: the workspace's plan does not keep it",
    "check_file_info": "it is of another organization, and Slack does not say more about it",
}
"""What Slack's errors mean, and a file's ``mode`` and ``file_access``."""


class Reference(TypedDict):
    """A file in Slack. ``why``: why the model does not get it; empty: it does. ``earlier``: of an earlier message."""

    id: str
    name: str
    type: str
    url: str
    why: str
    size: NotRequired[int]
    earlier: NotRequired[bool]


class UnreadError(Exception):
    """A file cannot be read, now or later. The message says why."""


async def referred(
    event: Event, said: Sequence[ThreadMessage], ctx: Context, *, last: bool
) -> list[Reference]:
    """Return references to the files of the event's message, and of the thread's latest before: a step, if any are.

    ``last``: no further attempt is left, so what cannot be read now is left out.
    """
    most = agent_settings().model_files
    own = files_of(event.slack) if event.kind.startswith("slack.") else []
    before = [file for each in reversed(said) for file in each.get("files", ())]
    earlier = before[: max(0, most - len(own))]
    if not most or not (own or earlier):
        return []

    async def both() -> list[Reference]:
        beside = await references_of(own, ctx, last)
        return beside + [{**each, "earlier": True} for each in await references_of(earlier, ctx, last)]

    # The history that the thread is read from may differ between attempts, so the files are no arguments.
    found: list[Reference] = await ctx.step("files", both)
    return found


async def references_of(files: Sequence[Any], ctx: Context, last: bool) -> list[Reference]:
    """Return references to files as an event has them. ``last`` as in :func:`referred`."""
    most, found = agent_settings().model_files, list[Reference]()
    for number, file in enumerate(map(object_in, files)):
        known, why = file, "" if number < most else "there are too many files"
        try:
            known = file if why else await _informed(file, ctx)
        except (UnreadError, UnavailableError) as error:
            if isinstance(error, UnavailableError) and not last:
                raise
            why = str(error)
        found.append(_reference(known, ctx.settings, why))
    return found


async def _informed(file: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Return a file with what Slack knows of it. Of a file of another organization, an event has the id alone."""
    if file.get("file_access") != "check_file_info":
        return file
    try:
        answer = await ctx.slack.client.files_info(file=str(file.get("id")))
    except UNCLEAR as error:
        said = slack_error(error)
        if said is None or said in PASSING or unknown_whether_done(error):
            raise UnavailableError(f"Slack cannot answer now: {said or type(error).__name__}") from None
        raise UnreadError(REFUSED.get(said, f"Slack answers {said}")) from None
    return object_in(answer.get("file")) or file


def _reference(file: dict[str, Any], settings: WorkerSettings, why: str) -> Reference:
    identity, sort, size = str(file.get("id")), str(file.get("mimetype")), file.get("size")
    url = text_in(file.get("url_private_download")) or text_in(file.get("url_private")) or ""
    why = why or _unreadable(file, url, settings)
    known: Reference = {"id": identity, "name": named(file), "type": sort, "url": url, "why": why}
    return known | {"size": size} if isinstance(size, int) else known


def _unreadable(file: dict[str, Any], url: str, settings: WorkerSettings) -> str:
    """Return why a file cannot be read, as far as Slack's description of it says so."""
    sort, size = str(file.get("mimetype")), file.get("size")
    for said in map(file.get, ("mode", "file_access")):
        if isinstance(said, str) and said in REFUSED:
            return REFUSED[said]
    if sort not in BEGINNINGS and not _is_text(sort):
        return "it is no image, PDF or text"
    if isinstance(size, int) and size > LARGEST:
        return TOO_LARGE
    if not url:
        return "Slack gives no address for it"
    return "" if is_at(url, ORIGINS | origin_of(settings)) else "Slack does not keep it"


def _is_text(sort: str) -> bool:
    return sort.startswith("text/") or sort in TEXTS


@dataclass(eq=False)
class Attached:
    """The files beside the question of a turn."""

    ctx: Context
    asked: str
    references: Sequence[Reference]
    room: FileRoom
    """Where they are while the model is asked."""
    times: int = 1
    """How often a file is in memory then."""
    last: bool = False
    """Whether no further attempt is left."""
    _content: list[UserContent] = field(default_factory=list)
    _use: ExitStack = field(default_factory=ExitStack)

    @asynccontextmanager
    async def beside(self, messages: list[ModelMessage]) -> AsyncIterator[list[ModelMessage]]:
        """Yield the messages with the files beside the question. :class:`UnavailableError`: a later attempt may."""
        if not self.references:
            yield messages
            return
        if (taken := self.room.resume(self._drop)) is None:
            taken = await self._read_all()
        with self._use:
            self._use.callback(self.room.rest, self._drop, taken)
            yield [self._with_files(each) if isinstance(each, ModelRequest) else each for each in messages]

    def sent(self) -> None:
        """Let others have the room from now on: the model's server has the files, and begins to answer."""
        if self.times == 1:
            self._use.close()

    def close(self) -> None:
        """Forget the files: the attempt ends."""
        self.room.leave(self._drop)

    def _drop(self) -> None:
        for each in self._content:
            if self.times == 1 and isinstance(each, BinaryContent):
                forget(each)
        self._content = []

    def _with_files(self, request: ModelRequest) -> ModelRequest:
        def shown(part: Any) -> Any:
            asks = isinstance(part, UserPromptPart) and part.content == self.asked
            return replace(part, content=self._content) if asks else part

        return replace(request, parts=list(map(shown, request.parts)))

    async def _read_all(self) -> int:
        """Read the files into memory once there is room for all that fit. Return how much of it they take."""
        taken, most, references = 0, self.room.most // self.times, list[Reference]()
        too_large = f"the file is too large: those of a message may have {most:,} bytes together"
        for file in self.references:
            size = 0 if file["why"] else file.get("size", LARGEST)
            fits = taken + size <= most
            references.append(file if fits else file | {"why": too_large})
            taken += size if fits else 0
        await self._wait(taken := taken * self.times)
        self._content = [self.asked]
        try:
            for file in references:
                self._content += await self.read(file)
        except BaseException:
            self._drop()
            self.room.give(taken)
            raise
        return taken

    async def _wait(self, size: int) -> None:
        """Wait for room. The log, and so the trace, says so if it takes a second or more."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(LONGEST_WAIT):
                await self.room.take(size)
        except TimeoutError:
            raise UnavailableError(
                f"no room for {size:,} bytes of files: others take SURELANE_FILE_MEMORY"
            ) from None
        if (waited := time.monotonic() - began) >= 1:
            self.ctx.log.info("files waited for memory", bytes=size, seconds=round(waited, 1))

    async def read(self, file: Reference) -> list[UserContent]:
        """Return a file, or why the model does not get it."""
        name = f"The file {file['name']}" + (" of an earlier message" if file.get("earlier") else "")
        try:
            data = await self._bytes(file)
        except UnreadError as error:
            self.ctx.log.warning("file not read", file=file["id"], type=file["type"], why=str(error))
            return [f"({name} was not read: {error}.)"]
        if _is_text(file["type"]):
            return [f"{name}:\n{data.decode(errors='replace')[:LONGEST_TEXT]}"]
        if self.times == 1:
            return [f"{name}:", marked(data, file["type"])]
        return [f"{name}:", BinaryContent(bytes(data), media_type=file["type"])]

    async def _bytes(self, file: Reference) -> bytearray:
        """Return a file's bytes. In the last attempt no later one is hoped for: see :meth:`read`."""
        if file["why"]:
            raise UnreadError(file["why"])
        try:
            return _checked(file, *await self._downloaded(file))
        except (aiohttp.ClientError, TimeoutError) as error:
            why = f"a file cannot be read now: {type(error).__name__}"
        except UnavailableError as error:
            why = str(error)
        raise UnreadError("Slack did not send all of it") if self.last else UnavailableError(why)

    async def _downloaded(self, file: Reference) -> tuple[bytearray, str]:
        """Return a file's bytes and their type, as Slack answers."""
        client = self.ctx.slack.client
        assert client.session is not None  # noqa: S101 - slack_clients sets it
        headers = {"Authorization": f"Bearer {client.token}"}
        asked: dict[str, Any] = {"headers": headers, "allow_redirects": False, "proxy": client.proxy}
        async with client.session.get(file["url"], **asked) as response:
            if response.status == 429 or response.status >= 500:
                raise UnavailableError(f"a file cannot be read now: Slack answered {response.status}")
            if response.status != 200:
                raise UnreadError(SIGN_IN if 300 <= response.status < 400 else "Slack did not give it")
            if (data := await received(response, LARGEST)) is None:
                raise UnreadError(TOO_LARGE)
            return data, response.content_type


def _checked(file: Reference, data: bytearray, sort: str) -> bytearray:
    """Return a file's bytes if they are the file. Without the right to read it, Slack shows a page to sign in."""
    size = file.get("size", len(data))
    if sort == "text/html" and (file["type"] != sort or len(data) != size):
        raise UnreadError(SIGN_IN)
    if not data.startswith(BEGINNINGS.get(file["type"], b"")):
        raise UnreadError(f"what it holds is no {file['type']}")
    if len(data) < size and not file["type"].startswith("image/"):  # Slack may change images
        raise UnavailableError(f"a file was cut: {len(data)} of {size} bytes came")
    return data


async def attach(run: RunContext[Context], name: str, text: str) -> str:
    """Attach a text file to the answer, for what is too long or too wide for a message.

    Args:
        run: not for the model.
        name: the file's name with its ending, such as ``hours.csv``.
        text: what is in the file.
    """
    return await attach_bytes(run, name, text.encode())


async def attach_bytes(run: RunContext[Context], name: str, content: bytes) -> str:
    """Attach any file to the answer, once: for tools that make one, such as a chart. Return what the model is told."""
    (event, *_), ctx = attempt_of(run.deps).events, run.deps
    await ctx.slack.upload(event, content, filename=name[:LONGEST_NAME])
    return f"{name} is attached"
