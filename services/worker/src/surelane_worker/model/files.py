"""What people attach to a message, for the model, and a tool that attaches a file to the answer.

References alone are stored. The bytes are read from Slack where the model must be asked, once per attempt.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

import aiohttp
from pydantic_ai import RunContext
from pydantic_ai.messages import BinaryContent, ModelMessage, ModelRequest, UserContent, UserPromptPart
from yarl import URL

from surelane.events import Event
from surelane.slack import object_in, text_in
from surelane_service.outbound import bounded
from surelane_worker.handling.context import Context, attempt_of
from surelane_worker.model.errors import UnavailableError
from surelane_worker.slack.client import is_at, origin_of
from surelane_worker.worker_settings import WorkerSettings

LARGEST = 10 * 2**20
"""Bytes of a file that the model gets."""
LONGEST_TEXT = 50_000
"""Characters of a text file that the model gets. The rest is cut."""
LONGEST_NAME = 200
IMAGES_AND_PDF = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"})
TEXTS = frozenset({"application/json", "application/xml", "application/yaml", "application/javascript"})
"""The types of texts beside ``text/…``."""
ORIGINS = frozenset({URL("https://files.slack.com"), URL("https://files.slack-gov.com")})
"""Where Slack keeps files. The token is sent nowhere else."""


class Reference(TypedDict):
    """A file in Slack. ``why``: why the model does not get it; empty: it does."""

    id: str
    name: str
    type: str
    url: str
    why: str


async def referred(event: Event, ctx: Context) -> list[Reference]:
    """Return references to the files that a person attached to the event's message: a step, if there are any."""
    files = event.slack.get("files")
    if not event.kind.startswith("slack.") or not isinstance(files, list) or not ctx.settings.model_files:
        return []
    found: list[Reference] = await ctx.step("files", _references, files, ctx)
    return found


async def _references(files: Sequence[Any], ctx: Context) -> list[Reference]:
    most, found = ctx.settings.model_files, list[Reference]()
    for number, given in enumerate(map(object_in, files)):
        file = given
        if number < most and given.get("file_access") == "check_file_info":  # of another organization
            file = object_in((await ctx.slack.client.files_info(file=given["id"]))["file"])
        reference = _reference(file, ctx.settings)
        found.append(reference if number < most else {**reference, "why": "there are too many files"})
    return found


def _reference(file: dict[str, Any], settings: WorkerSettings) -> Reference:
    name = str(file.get("name") or file.get("title") or "file")[:LONGEST_NAME]
    url = text_in(file.get("url_private_download")) or text_in(file.get("url_private")) or ""
    sort, size, why = str(file.get("mimetype")), file.get("size"), ""
    if sort not in IMAGES_AND_PDF and not _is_text(sort):
        why = "it is no image, PDF or text"
    elif not isinstance(size, int) or size > LARGEST:
        why = f"it has more than {LARGEST:,} bytes"
    elif not is_at(url, ORIGINS | origin_of(settings)):
        why = "Slack does not keep it"
    return {"id": str(file.get("id")), "name": name, "type": sort, "url": url, "why": why}


def _is_text(sort: str) -> bool:
    return sort.startswith("text/") or sort in TEXTS


@dataclass(eq=False)
class Attached:
    """The files beside the question of a turn."""

    ctx: Context
    asked: str
    references: Sequence[Reference]
    _content: list[UserContent] = field(default_factory=list)

    async def beside(self, messages: list[ModelMessage]) -> list[ModelMessage]:
        """Return the messages for the model with the files beside the question."""
        if not self.references:
            return messages
        if not self._content:
            read = [part for each in self.references for part in await self._read(each)]
            self._content = [self.asked, *read]
        return [self._with_files(each) if isinstance(each, ModelRequest) else each for each in messages]

    def _with_files(self, request: ModelRequest) -> ModelRequest:
        parts = [
            replace(part, content=self._content)
            if isinstance(part, UserPromptPart) and part.content == self.asked
            else part
            for part in request.parts
        ]
        return replace(request, parts=parts)

    async def _read(self, file: Reference) -> list[UserContent]:
        data = None if file["why"] else await self._bytes(file)
        if data is None:
            self.ctx.log.warning("file not read", file=file["id"], type=file["type"])
            return [f"(The file {file['name']} was not read: {file['why'] or 'Slack did not give it'}.)"]
        if _is_text(file["type"]):
            return [f"The file {file['name']}:\n{data.decode(errors='replace')[:LONGEST_TEXT]}"]
        return [f"The file {file['name']}:", BinaryContent(data, media_type=file["type"])]

    async def _bytes(self, file: Reference) -> bytes | None:
        """Return a file's bytes; ``None``: the app may not read it, or it is too large."""
        client = self.ctx.slack.client
        assert client.session is not None  # noqa: S101 - slack_clients sets it
        headers = {"Authorization": f"Bearer {client.token}"}
        try:
            async with client.session.get(
                file["url"], headers=headers, allow_redirects=False, proxy=client.proxy
            ) as response:
                if response.status == 429 or response.status >= 500:
                    raise UnavailableError(f"a file cannot be read now: Slack answered {response.status}")
                # Without the right to read files, Slack shows a page to sign in.
                if response.status != 200 or response.content_type == "text/html" != file["type"]:
                    return None
                return await bounded(response, LARGEST)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnavailableError(f"a file cannot be read now: {type(error).__name__}") from None


async def attach(run: RunContext[Context], name: str, text: str) -> str:
    """Attach a text file to the answer, for what is too long or too wide for a message.

    Args:
        run: the run, which the model does not see.
        name: the file's name with its ending, such as ``hours.csv``.
        text: what is in the file.
    """
    (event, *_), ctx = attempt_of(run.deps).events, run.deps
    await ctx.slack.upload(event, text.encode(), filename=name[:LONGEST_NAME])
    return f"{name} is attached"
