"""Stream replies to Slack.

A stream's timestamp is kept on the event's row, so that a later attempt finishes the same message.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Self

from slack_sdk.errors import SlackApiError
from slack_sdk.models import JsonObject
from slack_sdk.web.async_client import AsyncWebClient

from surelane_worker.slack.client import slack_error
from surelane_worker.slack.notes import Notebook

INTERVAL = 0.5
"""Seconds between two calls for one stream. Slack allows an app about a hundred per minute (its Tier 4)."""

LONGEST = 12_000
"""Most characters of text per call (Slack's documentation of chat.appendStream)."""

NOT_STREAMING = "message_not_in_streaming_state"

Chunk = dict[str, Any] | JsonObject
Block = dict[str, Any] | JsonObject


class Stream:
    """A reply that grows.

    Text is sent at once if the interval since the last call is over. Otherwise it is sent when the interval ends,
    together with all text that was appended until then, even while the handler waits for something else.
    """

    def __init__(
        self,
        client: AsyncWebClient,
        notebook: Notebook,
        ordinal: int | str,
        metadata: dict[str, Any],
        arguments: dict[str, Any],
        check_claim: Callable[[], Awaitable[None]],
        interval: float = INTERVAL,
    ) -> None:
        self._client = client
        self._notebook = notebook
        self._ordinal = ordinal
        self._metadata = metadata
        self._arguments = arguments
        self._check_claim = check_claim
        self._interval = interval
        self._earlier = notebook.stream(ordinal)
        self._ts: str | None = self._earlier.get("ts")
        self._live = not self._earlier
        """Whether Slack takes more text for the message. If not, the end of the stream replaces the whole message."""
        self._everything: list[dict[str, Any]] = []
        self._waiting: list[dict[str, Any]] = []
        self._next_at = 0.0
        self._sending = asyncio.Lock()
        self._sender: asyncio.Task[None] | None = None
        self._ended = False

    @property
    def ts(self) -> str | None:
        """The message's timestamp; ``None`` before the first text is sent."""
        return self._ts

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.stop()
        elif self._sender is not None:  # the next attempt finishes the message
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)

    async def append(self, text: str = "", *, chunks: Sequence[Chunk] = ()) -> None:
        """Append Markdown text, then chunks: Slack's ``task_update``, ``plan_update``, ``blocks`` and so on.

        Raises:
            SlackApiError: Slack refused this or an earlier part.
        """
        added = [*_text_chunks(text), *(_plain(chunk) for chunk in chunks)]
        self._everything += added
        if not self._live or not added:
            return
        self._waiting += added
        if self._sender is not None and self._sender.done():
            self._sender.result()
            self._sender = None
        if self._sender is None and self._pause() <= 0:
            await self._send()
        if self._sender is None and self._waiting:
            self._sender = asyncio.create_task(self._send_later())

    async def stop(self, *, blocks: Sequence[Block] | None = None) -> None:
        """Finish the message, with ``blocks`` such as feedback buttons below it. The end of ``async with`` calls it.

        Raises:
            SlackApiError: Slack refused it.
        """
        if self._ended:
            return
        self._ended = True
        if self._sender is not None:
            if not self._sending.locked():
                self._sender.cancel()  # it sleeps; what it would send goes with the last call
            await asyncio.wait([self._sender])
            if not self._sender.cancelled():
                self._sender.result()
        if self._earlier.get("stopped"):
            return
        below = [_plain(block) for block in blocks or ()]
        if self._live and self._ts is None:
            await self._send()
        await self._check_claim()
        if not (self._live and await self._stopped(below)):
            await self._replace(below)
        if self._ts:
            await self._notebook.note_stream(self._ordinal, self._ts, stopped=True)

    def _pause(self) -> float:
        """Return the seconds until the next call may be made."""
        return self._next_at - asyncio.get_running_loop().time()

    async def _send_later(self) -> None:
        while self._live and self._waiting:
            await asyncio.sleep(self._pause())
            await self._send()

    async def _send(self) -> None:
        """Send all waiting text, or start the message with it. Long texts take several calls."""
        async with self._sending:
            parts, self._waiting = _parts(self._waiting), []
            for part in parts:
                await self._check_claim()
                if self._ts is None:
                    await self._start(part)
                elif part and self._live:
                    await self._streaming(
                        self._client.chat_appendStream(
                            channel=self._arguments["channel"], ts=self._ts, chunks=part
                        )
                    )
            self._next_at = asyncio.get_running_loop().time() + self._interval

    async def _start(self, chunks: list[dict[str, Any]]) -> None:
        answer = await self._client.chat_startStream(**self._arguments, chunks=chunks or None)
        self._ts = str(answer["ts"])
        await self._notebook.note_stream(self._ordinal, self._ts, stopped=False)

    async def _stopped(self, blocks: list[dict[str, Any]]) -> bool:
        *parts, last = _parts(self._waiting)
        self._waiting = [chunk for part in parts for chunk in part]
        await self._send()
        return await self._streaming(
            self._client.chat_stopStream(
                channel=self._arguments["channel"],
                ts=str(self._ts),
                chunks=last or None,
                blocks=blocks or None,
                metadata=self._metadata,
            )
        )

    async def _streaming(self, call: Awaitable[object]) -> bool:
        """Await a call. Return false if Slack has ended the stream by itself, which it does after a while."""
        try:
            await call
        except SlackApiError as error:
            if slack_error(error) != NOT_STREAMING:
                raise
            self._live = False
        return self._live

    async def _replace(self, blocks: list[dict[str, Any]]) -> None:
        """Replace a message that Slack no longer extends, by all text and blocks of this attempt."""
        channel, ts = self._arguments["channel"], str(self._ts)
        await self._streaming(self._client.chat_stopStream(channel=channel, ts=ts))
        text = "".join(chunk["text"] for chunk in self._everything if chunk["type"] == "markdown_text")
        shown = [
            block for chunk in self._everything if chunk["type"] == "blocks" for block in chunk["blocks"]
        ]
        content: dict[str, Any] = {"markdown_text": text}
        if shown or blocks:
            said = [{"type": "markdown", "text": text}] if text else []
            content = {"text": text[:LONGEST], "blocks": [*said, *shown, *blocks]}
        if text or shown or blocks:
            await self._client.chat_update(channel=channel, ts=ts, metadata=self._metadata, **content)


def _text_chunks(text: str) -> list[dict[str, Any]]:
    return [
        {"type": "markdown_text", "text": text[start : start + LONGEST]}
        for start in range(0, len(text), LONGEST)
    ]


def _parts(chunks: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return chunks as the parts of single calls. The last one may be empty."""
    parts = []
    while True:
        part, chunks = _first_part(chunks)
        parts.append(part)
        if not chunks:
            return parts


def _first_part(
    chunks: list[dict[str, Any]],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the chunks that one call may hold, with adjacent texts joined, and the rest."""
    part: list[dict[str, Any]] = []
    length = 0
    for position, chunk in enumerate(chunks):
        is_text = chunk["type"] == "markdown_text"
        length += len(chunk["text"]) if is_text else 0
        if length > LONGEST and part:
            return part, chunks[position:]
        if is_text and part and part[-1]["type"] == "markdown_text":
            part[-1] = {"type": "markdown_text", "text": part[-1]["text"] + chunk["text"]}
        else:
            part.append(chunk)
    return part, []


def _plain(part: Chunk) -> dict[str, Any]:
    """Return one of slack-sdk's chunks or blocks as JSON."""
    plain: dict[str, Any] = part.to_dict() if isinstance(part, JsonObject) else part
    return plain
