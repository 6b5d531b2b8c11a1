"""Stream replies to Slack.

A stream is noted on the event's row before it begins, with its timestamp once Slack answered, and when it ends. So a
later attempt finishes the same messages. Slack's ``chat.startStream`` takes no metadata: a message that was being begun
when its attempt ended is found by its state and its author.

Slack refuses streams where it takes a plain message, and any call of a stream may fail. The text is not lost then: the
end of the message shows all of it, by ``chat.update``, or in a new message.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, takewhile
from typing import Any, Self

from slack_sdk.errors import SlackApiError
from slack_sdk.models import JsonObject
from slack_sdk.web.async_client import AsyncWebClient

from surelane.events import Event
from surelane_worker.slack.chunks import content_of, cut, update_of
from surelane_worker.slack.client import (
    FINAL,
    NO_THREAD,
    UNCLEAR,
    allowing,
    plain,
    slack_error,
    unknown_whether_done,
)
from surelane_worker.slack.marks import Ordinal, metadata_of
from surelane_worker.slack.notes import Notebook, SentReplies, Thread
from surelane_worker.slack.tokens import owner_fields

INTERVAL = 0.5
"""Seconds between two calls for one stream. Slack allows an app about a hundred per minute (its Tier 4)."""

NOT_STREAMING = "message_not_in_streaming_state"
ENDED = (NOT_STREAMING, "message_not_found")
LOOKS = ("username", "icon_emoji", "icon_url")
"""The arguments of ``chat.startStream`` that a plain message takes, too."""
UNFURLS = ("unfurl_links", "unfurl_media")
"""Arguments that a plain message alone takes: Slack has none for streams."""
SESSION = "session_status"
"""The argument that ``chat.stopStream`` alone takes: the status of the thread's agent session after it."""

Part = dict[str, Any] | JsonObject
"""A chunk or a block."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The beginning of one streamed message, which happens once for the event."""

    event: Event
    name: Ordinal
    thread: Thread
    """Where it stands."""
    notebook: Notebook
    sent: SentReplies
    """Finds the message of an earlier attempt."""
    marked: bool = True
    """Whether the message has the mark of its event and its name, once it has ended."""

    @property
    def noted(self) -> Mapping[str, Any]:
        return self.notebook.stream(self.name)

    async def earlier(self) -> str | None:
        """Return the timestamp of the message that an earlier attempt began; ``None``: it began none."""
        return (self.noted.get("ts") or await self.sent.earlier(self._found)) if self.noted else None

    async def begin(self, call: Callable[[], Awaitable[str]]) -> str:
        """Begin the message with a call that returns its timestamp; see :meth:`SentReplies.noted_once`."""
        return await self.sent.noted_once(call, self._found, self._note, self.forget)

    async def remove(self, client: AsyncWebClient, ts: str) -> None:
        """Remove the message that was begun, if Slack lets it."""
        await allowing(None, client.chat_stopStream(channel=self.thread.channel, ts=ts))
        await allowing(FINAL.union(ENDED), client.chat_delete(channel=self.thread.channel, ts=ts))

    async def forget(self) -> None:
        await self.notebook.forget("streams", self.name)

    async def _note(self, ts: str | None) -> None:
        thread = self.thread
        self.notebook.place(self.name, thread.channel)
        place = {"channel": thread.channel, "thread_ts": thread.ts, "since": thread.since}
        owner = owner_fields(self.event)  # whose token ends it if the event ends first
        await self.notebook.note_stream(self.name, ts, stopped=False, **place, **owner)

    async def _found(self) -> str | None:
        mark = (self.event, self.name) if self.marked else None
        found = await self.sent.running(self.thread, mark)
        return next((ts for ts in found if not self.notebook.has_stream(ts)), None)


@dataclass(eq=False)
class StreamMessage:
    """One message of a stream."""

    client: AsyncWebClient
    begun: Begun
    arguments: dict[str, Any]
    """Further ones of ``chat.startStream``."""
    check_claim: Callable[[], Awaitable[None]]

    def __post_init__(self) -> None:
        self._metadata = metadata_of(self.begun.event, self.begun.name)
        self.ts: str | None = self.begun.noted.get("ts")
        self._live = self.ts is None
        """Whether Slack takes more text for the message. If not, its end shows the whole message."""
        self.said: list[dict[str, Any]] = []

    async def add(self, chunks: list[dict[str, Any]]) -> None:
        """Append chunks, or begin the message with them."""
        self.said += chunks
        if self._live:
            await self.check_claim()
            if self.ts is None:
                await self._begin(chunks)
            else:
                await self._streaming(self.client.chat_appendStream(**self._place, chunks=chunks))

    async def end(self, chunks: list[dict[str, Any]], blocks: list[dict[str, Any]], **note: Any) -> None:
        """Append the last chunks, and blocks below the text. ``note``: what to note besides."""
        if self.ts is None and self._live:
            await self.add(chunks)
            chunks = []
        self.said += chunks
        await self.check_claim()
        session = self.arguments.get(SESSION)
        stop = partial(
            self.client.chat_stopStream, **self._place, metadata=self._metadata, session_status=session
        )
        if not (self._live and await self._streaming(stop(chunks=chunks or None, blocks=blocks or None))):
            await self._show(blocks)
        if self.ts:
            await self.begun.notebook.note_stream(self.begun.name, self.ts, stopped=True, **note)

    async def remove(self) -> None:
        """Remove the message, which an earlier attempt needed and this one does not."""
        if ts := await self.begun.earlier():
            await self.check_claim()
            await self.begun.remove(self.client, ts)
        await self.begun.forget()

    @property
    def _place(self) -> dict[str, Any]:
        return {"channel": self.begun.thread.channel, "ts": str(self.ts)}

    async def _begin(self, chunks: list[dict[str, Any]]) -> None:
        if found := await self.begun.earlier():
            self.ts, self._live = found, False
            return

        async def start() -> str:
            await self.check_claim()
            place = {"channel": self.begun.thread.channel, "thread_ts": str(self.begun.thread.ts)}
            given = {name: each for name, each in self.arguments.items() if name not in (*UNFURLS, SESSION)}
            answer = await self.client.chat_startStream(**place, **given, chunks=chunks or None)
            return str(answer["ts"])

        try:
            self.ts = await self.begun.begin(start)
        except SlackApiError as error:
            if slack_error(error) in NO_THREAD:
                await self.begun.sent.check_thread(self.begun.event, self.begun.thread)
            self._note_refusal(error)

    async def _streaming(self, call: Awaitable[object]) -> bool:
        """Await a call. Return false if Slack did not say that it extended the stream."""
        try:
            await call
        except UNCLEAR as error:
            self._note_refusal(error)
        return self._live

    def _note_refusal(self, error: BaseException) -> None:
        """Note that Slack takes no more text. It ends a stream by itself after a while, which is no news."""
        self._live = False
        if (named := slack_error(error) or type(error).__name__) != NOT_STREAMING:
            self.begun.sent.log.warning("Slack refused a stream; its text is posted plainly", error=named)

    async def _show(self, blocks: list[dict[str, Any]]) -> None:
        """Show all text and blocks of this attempt, where Slack does not extend the message: change it, or post it."""
        if self.ts is None:
            self.ts = await self.begun.earlier()  # Slack may have begun it, and said nothing clear
        if self.ts is not None:
            await self._streaming(self.client.chat_stopStream(**self._place))
        content = content_of(self.said, blocks)
        says = any("text" in chunk or "blocks" in chunk for chunk in self.said)  # tasks alone are decoration
        ways = (
            [content, {"text": content["text"]}] if says and content["text"] else [content]
        )  # without blocks
        if self.ts is not None:
            for way in ways if any(content.values()) else ():
                shown = update_of(way["text"], {name: way[name] for name in way if name != "text"})
                if await allowing(
                    None, self.client.chat_update(**self._place, metadata=self._metadata, **shown)
                ):
                    return
            if not any(content.values()):
                return
            await self.begun.remove(self.client, self.ts)
            self.ts = None
        if says or blocks:
            await self._post(ways)

    async def _post(self, ways: Sequence[Mapping[str, Any]]) -> None:
        """Post the message in the first way that Slack takes."""
        given = {name: self.arguments[name] for name in LOOKS + UNFURLS if name in self.arguments}
        place = {"channel": self.begun.thread.channel, "thread_ts": self.begun.thread.ts, **given}

        async def post() -> str:
            refused: SlackApiError | None = None
            for way in ways:
                await self.check_claim()
                try:
                    answer = await self.client.chat_postMessage(**place, **way, metadata=self._metadata)
                except SlackApiError as error:
                    if unknown_whether_done(error):
                        raise
                    refused = error
                else:
                    return await self.begun.sent.posted(self.begun.event, self.begun.thread, answer)
            assert refused is not None  # noqa: S101 - there is a way
            raise refused

        self.ts = await self.begun.begin(post)


class Stream:
    """A reply that grows. What one message cannot hold goes on in the next one.

    Text is sent at once if the interval since the last call is over. Otherwise it is sent when the interval ends,
    together with all text that was appended until then, even while the handler waits for something else. ``append`` and
    ``stop`` raise ``SlackApiError`` if Slack refuses even a plain message.
    """

    def __init__(self, made: Callable[[int], StreamMessage], interval: float = INTERVAL) -> None:
        """Begin nothing yet. ``made`` makes the message of a number, from 0 on."""
        self._made = made
        self._interval = interval
        self._number = 0
        self._message = self._first = made(0)
        last = next(number for number in count() if not self._noted(number).get("goes_on"))
        self._whole = bool(self._noted(last).get("stopped"))
        """Whether an earlier attempt finished the stream."""
        self._waiting: list[dict[str, Any]] = []
        self._next_at = 0.0
        self._sending = asyncio.Lock()
        self._sender: asyncio.Task[None] | None = None
        self._ended = False

    @property
    def ts(self) -> str | None:
        """The first message's timestamp; ``None`` before the first text is sent."""
        return self._first.ts

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            await self.stop()
        elif self._sender is not None:  # the next attempt finishes the message
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)

    async def append(self, text: str = "", *, chunks: Sequence[Part] = ()) -> None:
        """Append Markdown text, then chunks: Slack's ``task_update``, ``plan_update``, ``blocks`` and so on."""
        said = [{"type": "markdown_text", "text": text}] if text else []
        added = [*said, *map(plain, chunks)]
        if self._whole or not added:
            return
        self._waiting += added
        if self._sender is not None and self._sender.done():
            self._sender.result()
            self._sender = None
        if self._sender is None and self._pause() <= 0:
            await self._send()
        if self._sender is None and self._waiting:
            self._sender = asyncio.create_task(self._send_later())

    async def stop(self, *, blocks: Sequence[Part] | None = None) -> None:
        """Finish the reply, with ``blocks`` such as feedback buttons below it. The end of ``async with`` calls it."""
        if self._ended:
            return
        self._ended = True
        if self._sender is not None:
            if not self._sending.locked():
                self._sender.cancel()  # it sleeps; what it would send goes with the last call
            await asyncio.wait([self._sender])
            if not self._sender.cancelled():
                self._sender.result()
        if self._whole:
            return
        below = list(map(plain, blocks or ()))
        if self._waiting or below or self._message.ts or self._message.said or self._number:
            last = await self._fill()
            await self._remove_later()
            await self._message.end(last, below)

    def _noted(self, number: int) -> Mapping[str, Any]:
        return self._made(number).begun.noted

    def _pause(self) -> float:
        """Return the seconds until the next call may be made."""
        return self._next_at - asyncio.get_running_loop().time()

    async def _send_later(self) -> None:
        while self._waiting:
            await asyncio.sleep(self._pause())
            await self._send()

    async def _send(self) -> None:
        """Send all waiting text, or start a message with it."""
        async with self._sending:
            if now := await self._fill():
                await self._message.add(now)
            self._next_at = asyncio.get_running_loop().time() + self._interval

    async def _fill(self) -> list[dict[str, Any]]:
        """Finish each message that the waiting chunks fill. Return what is for the last one."""
        chunks, self._waiting = self._waiting, []
        while True:
            now, chunks = cut(self._message.said, chunks)
            if not chunks:
                return now
            await self._message.end(now, [], goes_on=True)
            self._number += 1
            self._message = self._made(self._number)

    async def _remove_later(self) -> None:
        """Remove the messages by which an earlier attempt's text was longer, the last one first.

        A crash between two removals then leaves no gap in the notes, where the next attempt would stop to look.
        """
        later = takewhile(self._noted, count(self._number + 1))
        for number in reversed(list(later)):
            await self._made(number).remove()


async def close_stream(client: AsyncWebClient, channel: str, thread_ts: str | None, ts: str) -> None:
    """End a stream that an event left open. Where Slack refuses that, say what it says in a plain message instead."""
    try:
        await allowing(ENDED, client.chat_stopStream(channel=channel, ts=ts))
    except SlackApiError as error:
        if unknown_whether_done(error):
            raise
        asked: dict[str, Any] = {
            "channel": channel,
            "ts": thread_ts or ts,
            "oldest": ts,
            "latest": ts,
            "inclusive": True,
        }
        found = (await client.conversations_replies(**asked))["messages"]
        text = next((each["text"] for each in found if each["ts"] == ts and each.get("text")), "")
        if not (
            text and await allowing(None, client.chat_update(channel=channel, ts=ts, **update_of(text, {})))
        ):
            await allowing(FINAL.union(ENDED), client.chat_delete(channel=channel, ts=ts))
            if text:
                await client.chat_postMessage(channel=channel, thread_ts=thread_ts, text=text)
