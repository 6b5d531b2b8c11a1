"""Know what Slack did for an event in earlier attempts: from the notes on its row, or by a look in Slack.

A reply is noted twice: before it is sent, and with its timestamp once Slack answered. So a later attempt knows of each
reply whether it was sent. It looks in Slack only for one whose attempt ended in between. Each message carries the
event's id and the reply's ordinal in its ``metadata``: 0 for a handler's first reply, and so on.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from surelane.errors import DatabaseUnavailable, SurelaneError, TransientConflict
from surelane.events import Event
from surelane.slack import object_in, place_of
from surelane_service.engine import Engine, Settled
from surelane_service.logs import Logger
from surelane_worker.slack.client import (
    FINAL,
    NO_THREAD,
    UNCLEAR,
    UNREADABLE,
    ReplyOrderError,
    SentenceError,
    ThreadGoneError,
    allowing,
    messages_of,
    slack_error,
    unknown_whether_done,
)
from surelane_worker.slack.marks import Ordinal, ordinal_of

TRIES = 40
PAUSE = 0.05
"""Seconds between two tries to note something on a row that another transaction has locked."""
AWAY = 0.5
"""Seconds between two tries while the database cannot be reached."""
ARRIVES = 5.0
"""Seconds of an attempt after which Slack has all that earlier ones sent. Under load a call took over a second."""
PAUSES = (1.0, 4.0)
"""Seconds to wait before a message of unknown fate is looked for and then sent again."""
LOOKS = (0.0, 1.0, 2.0, 4.0)
"""Seconds before each look whether Slack has shared a file. It does so after its answer, and sometimes not at all."""
REMOVED = "_This answer was removed: its question was deleted._"
"""What a message says that Slack does not let us delete."""
RUNNING = ("in_progress", "errored")
"""The states of a streamed message that has not been stopped."""


class ClaimLostError(SentenceError):
    """The claim of this event is lost, so its reply is not sent: another attempt may send it."""


class Notebook:
    """The notes about one event: its replies and streams by ordinal, and further calls by name.

    A note that must be stored waits for the database: without it, a later attempt would repeat what it is about. The
    wait ends with the lease at the latest, because the handler is stopped then. :class:`ClaimLostError` is raised if
    the claim no longer stands.
    """

    def __init__(self, engine: Engine, event: Event, log: Logger) -> None:
        self._engine = engine
        self._event = event
        self._log = log
        self._notes: dict[str, Any] = json.loads(event.notes) if event.notes else {}
        self._lock = asyncio.Lock()
        self._written = event.notes
        self._earlier: dict[str, str] = dict(self._part("said"))
        """What earlier attempts said in replies that this one has not come to yet: a digest by ordinal."""
        self._taken, self._free = set[str](), list[str]()
        self._doubtful: dict[str, str] = {}

    def number(self, ordinal: int, digest: str) -> int:
        """Return a reply's number: it has that of an equal reply of an earlier attempt, else the next number.

        Replies that tasks send at once come in any order. What a handler words anew in each attempt is the next one.

        Raises:
            ReplyOrderError: one before, of this attempt, was taken for this one, and is not sent.
        """
        if digest in self._doubtful.values():
            raise ReplyOrderError
        same = next((each for each, said in self._earlier.items() if said == digest), None)
        found = same or (str(ordinal) if str(ordinal) not in self._taken else self._free.pop(0))
        if found != str(ordinal) and str(ordinal) not in self._taken:
            self._free.append(str(ordinal))
        if (said := self._earlier.pop(found, digest)) != digest:
            self._doubtful[found] = said
        self._taken.add(found)
        self._part("said").setdefault(found, digest)
        return int(found)

    def reply(self, ordinal: Ordinal) -> str | None:
        """Return a reply's timestamp (``""`` through a ``response_url``); ``None``: none is noted."""
        noted = self._part("replies").get(str(ordinal))
        return noted if isinstance(noted, str) else None

    def has_reply(self, ordinal: Ordinal) -> bool:
        """Return whether a reply was sent, or perhaps sent."""
        return str(ordinal) in self._part("replies")

    def place(self, ordinal: Ordinal, channel: str) -> None:
        """Note with the next note where a reply or a stream stands, unless it is in its event's channel."""
        if channel != place_of(self._event.payload).channel:
            self._part("elsewhere")[str(ordinal)] = channel

    def place_past(self, ordinal: Ordinal, step: list[Any]) -> None:
        """Note with the next note past which step a new reply or stream stands: its name and number, or nothing."""
        if not (self.has_reply(ordinal) or self.stream(ordinal)):
            self._part("past")[str(ordinal)] = step

    async def note_reply(self, ordinal: Ordinal, ts: str | None) -> None:
        """Note a reply's timestamp; ``None``: it is being sent, which must be stored."""
        self._part("replies")[str(ordinal)] = ts
        await self._write(must=ts is None)

    def stream(self, ordinal: Ordinal) -> Mapping[str, Any]:
        """Return the note of this or an earlier attempt about a streamed message: ``ts`` and so on, or nothing."""
        noted: Mapping[str, Any] = self._part("streams").get(str(ordinal), {})
        return noted

    def has_stream(self, ts: str) -> bool:
        return any(noted["ts"] == ts for noted in self._part("streams").values())

    async def note_stream(self, ordinal: Ordinal, ts: str | None, *, stopped: bool, **more: Any) -> None:
        """Note a streamed message's timestamp; ``None``: it is being begun, which must be stored.

        ``more`` says how to end it if the event ends first: the trigger ``event_hist_close`` reads it.
        """
        self._part("streams")[str(ordinal)] = {"ts": ts, "stopped": stopped, **more}
        await self._write(must=ts is None)

    async def forget(self, part: Literal["replies", "streams"], ordinal: Ordinal) -> None:
        """Note that a message was not sent or begun, or is removed."""
        self._part(part).pop(str(ordinal), None)
        await self._write()

    def call(self, name: str) -> str | None:
        """Return what a call by this name made, such as a view's id; ``None``: no answer came."""
        made = self._part("calls").get(name)
        return made if isinstance(made, str) else None

    async def note_call(self, name: str, made: str, *, must: bool = False) -> None:
        self._part("calls")[name] = made
        await self._write(must=must)

    async def note_version(self, version: str) -> None:
        """Note the version of the handler that the event began under, and return once that is stored."""
        self._notes["version"] = version
        await self._write(must=True)
        while '"version"' not in (self._written or ""):
            await asyncio.sleep(PAUSE)
            await self._write(must=True)

    def _part(self, name: str) -> dict[str, Any]:
        part: dict[str, Any] = self._notes.setdefault(name, {})
        return part

    async def _write(self, *, must: bool = False) -> None:
        """Store the notes, one write at a time: a later one must not be overtaken. If they ``must`` be stored, wait.

        A row that stays locked for two seconds is given up in any case: then a later attempt may repeat a reply.
        """
        async with self._lock:
            text = json.dumps({name: part for name, part in self._notes.items() if part})
            locked, warned = 0, False
            while text != self._written and locked < TRIES:
                try:
                    answer = await self._engine.note_event(self._event.id, self._event.claim, text)
                except SurelaneError as error:
                    if not warned:
                        self._log.warning(
                            "could not note what Slack did", error=type(error).__name__, waits=must
                        )
                    warned = True
                    if not (must and isinstance(error, DatabaseUnavailable | TransientConflict)):
                        return
                    await asyncio.sleep(AWAY)
                    continue
                if answer is Settled.DONE:
                    self._written = text
                elif answer is Settled.BUSY:
                    locked += 1
                    await asyncio.sleep(PAUSE)
                elif must:
                    raise ClaimLostError
                else:
                    return


@dataclass(eq=False)
class Notebooks:
    """The notes about the events of one attempt."""

    engine: Engine
    log: Logger
    _by_id: dict[int, Notebook] = field(default_factory=dict)

    def of(self, event: Event) -> Notebook:
        if event.id not in self._by_id:
            self._by_id[event.id] = Notebook(self.engine, event, self.log)
        return self._by_id[event.id]


@dataclass(frozen=True, slots=True)
class Thread:
    """The messages to search: a thread's, or a channel's if ``ts`` is ``None``, between two timestamps."""

    channel: str
    ts: str | None
    since: str | None
    until: str | None = None


@dataclass(eq=False)
class SentReplies:
    """Find replies to events in Slack, for one attempt.

    Its methods raise ``SlackApiError`` where Slack failed for a reason that may pass.
    """

    client: AsyncWebClient
    log: Logger
    _began: float = field(default_factory=lambda: asyncio.get_running_loop().time())

    async def earlier(self, find: Callable[[], Awaitable[str | None]]) -> str | None:
        """Return what an earlier attempt sent, of which it noted no answer; ``None``: it sent nothing.

        If its worker died, what it sent in its last moment may still be on its way.
        """
        if (found := await find()) is None:
            await asyncio.sleep(self._began + ARRIVES - asyncio.get_running_loop().time())
            found = await find()
        return found

    async def posted(self, event: Event, thread: Thread, answer: AsyncSlackResponse) -> str:
        """Return the timestamp of a message that Slack has posted.

        A reply to a message that was deleted is posted to the channel, for all to read, and its answer names no thread.
        It is removed.

        Raises:
            ThreadGoneError: it was.
        """
        ts, message = str(answer["ts"]), object_in(answer.get("message"))
        if thread.ts and message and not message.get("thread_ts"):
            await self._remove(thread, ts)
            raise ThreadGoneError(event.id)
        return ts

    async def check_thread(self, event: Event, thread: Thread) -> None:
        """Return if the thread is there, as far as Slack tells, or raise :class:`ThreadGoneError`."""
        if not thread.ts:
            return
        try:  # its limit is far above that of the method that reads a thread
            await self.client.chat_getPermalink(channel=thread.channel, message_ts=thread.ts)
        except SlackApiError as error:
            if slack_error(error) in NO_THREAD and not await self._has(thread.channel, thread.ts):
                raise ThreadGoneError(event.id) from None

    async def _has(self, channel: str, ts: str) -> bool:
        """Return whether a thread is there, or cannot be read."""
        try:
            await self.client.conversations_replies(channel=channel, ts=ts, limit=1)
        except SlackApiError as error:
            return slack_error(error) not in NO_THREAD
        return True

    async def _remove(self, thread: Thread, ts: str) -> None:
        place: dict[str, Any] = {"channel": thread.channel, "ts": ts}
        self.log.info("a reply is removed, because its thread is gone", ts=ts)
        if not await allowing(FINAL, self.client.chat_delete(**place)):
            await allowing(FINAL, self.client.chat_update(**place, text=REMOVED, blocks=[], attachments=[]))

    async def noted_once(
        self,
        call: Callable[[], Awaitable[str]],
        find: Callable[[], Awaitable[str | None]],
        note: Callable[[str | None], Awaitable[None]],
        forget: Callable[[], Awaitable[None]],
    ) -> str:
        """Send a message once, noted before and after. A refused one is forgotten.

        Raises:
            ClaimLostError: it must not be sent.
            ThreadGoneError: its thread is gone.
        """
        await note(None)
        try:
            ts = await self.once(call, find)
        except (SlackApiError, ThreadGoneError) as error:
            if isinstance(error, ThreadGoneError) or not unknown_whether_done(error):
                await forget()
            raise
        await note(ts)
        return ts

    async def once(
        self, call: Callable[[], Awaitable[str]], find: Callable[[], Awaitable[str | None]]
    ) -> str:
        """Send a message, and return its timestamp. Where it is unclear if Slack took it, look before sending again."""
        for pause in PAUSES:
            try:
                return await call()
            except UNCLEAR as error:
                if not unknown_whether_done(error):
                    raise
                told = slack_error(error) or type(error).__name__
                self.log.warning("Slack did not say whether it took a message", error=told)
                await asyncio.sleep(pause)
                if found := await find():
                    return found
        return await call()

    async def look(self, event: Event, thread: Thread) -> dict[Ordinal, str]:
        """Return the timestamps of the event's replies in the thread now, by ordinal.

        Raises:
            ThreadGoneError: there is no such thread. What Slack has posted beside it is removed.
        """
        try:
            return await self._marked(event, thread)
        except SlackApiError as error:
            if slack_error(error) not in NO_THREAD:
                raise
        for ts in (await self._marked(event, replace(thread, ts=None))).values():
            await self._remove(thread, ts)
        raise ThreadGoneError(event.id)

    async def _marked(self, event: Event, thread: Thread) -> dict[Ordinal, str]:
        found: dict[Ordinal, str] = {}
        async for message in self._messages(thread):
            ordinal = ordinal_of(message, event)
            if ordinal is not None:
                found.setdefault(ordinal, str(message["ts"]))
        return found

    async def file(self, thread: Thread, file: str) -> str | None:
        """Return a file's id if a message of the thread has it."""
        with suppress_no_thread():
            async for message in self._messages(thread):
                if any(each.get("id") == file for each in message.get("files") or []):
                    return file
        return None

    async def check_shared(self, file: str) -> None:
        """Wait until Slack has shared a file. Log one that it does not share: a second call might share it twice."""
        for pause in LOOKS:
            await asyncio.sleep(pause)
            try:
                found = await self.client.files_info(file=file)
            except UNCLEAR:  # such as without the right files:read
                return
            if object_in(found.get("file")).get("shares") != {}:
                return
        self.log.warning("Slack has taken a file, and shared it nowhere", file=file)

    async def scheduled(self, message: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return a message that is to be posted later, as ``chat.scheduleMessage`` answers, if Slack has it."""
        channel, at = message.get("channel"), int(message.get("post_at") or 0)
        asked: dict[str, Any] = {"channel": channel, "oldest": str(at), "latest": str(at + 1)}
        listed = await self.client.chat_scheduledMessages_list(**asked)
        for each in listed["scheduled_messages"]:
            if each["post_at"] == at and each.get("text") == message.get("text", ""):
                return {"channel": channel, "scheduled_message_id": each["id"], "post_at": at}
        return None

    async def running(self, thread: Thread, mark: tuple[Event, Ordinal] | None = None) -> list[str]:
        """Return the timestamps of this bot's streams in the thread that have not ended.

        ``mark``: a message that is this reply to this event comes first.
        """
        bot = (await self.client.auth_test())["user_id"]
        marked, running = list[str](), list[str]()
        with suppress_no_thread():
            async for message in self._messages(thread):
                if mark is not None and ordinal_of(message, mark[0]) == mark[1]:
                    marked.append(str(message["ts"]))
                elif message.get("streaming_state") in RUNNING and message.get("user") == bot:
                    running.append(str(message["ts"]))
        return marked + running

    def _messages(self, thread: Thread) -> AsyncIterator[dict[str, Any]]:
        asked: dict[str, Any] = {"channel": thread.channel, "oldest": thread.since, "latest": thread.until}
        asked["include_all_metadata"] = True
        if thread.ts:
            first = self.client.conversations_replies(ts=thread.ts, **asked)
        else:
            first = self.client.conversations_history(**asked)
        return messages_of(first, self.log, UNREADABLE)


@contextmanager
def suppress_no_thread() -> Iterator[None]:
    """End the block where Slack says that there is no such thread."""
    try:
        yield
    except SlackApiError as error:
        if slack_error(error) not in NO_THREAD:
            raise
