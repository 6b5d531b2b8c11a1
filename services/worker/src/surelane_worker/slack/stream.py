"""Stream replies to Slack.

A stream's timestamp is kept on the event's row, so that a later attempt finishes the same message.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self

from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

from surelane.events import Event
from surelane_service.engine import Engine, Settled
from surelane_worker.slack.client import slack_error

NOTE_TRIES = 40
NOTE_PAUSE = 0.05


class Notebook:
    """Keeps notes on an event's row for later attempts: the streams that were begun, by ordinal."""

    def __init__(self, engine: Engine, event: Event) -> None:
        self._engine = engine
        self._event = event
        self._notes: dict[str, Any] = json.loads(event.notes) if event.notes else {}

    def stream(self, ordinal: int) -> Mapping[str, Any]:
        """Return the note of this or an earlier attempt about a stream: ``ts`` and ``stopped``, or nothing."""
        noted: Mapping[str, Any] = self._notes.get("streams", {}).get(str(ordinal), {})
        return noted

    async def note_stream(self, ordinal: int, ts: str, *, stopped: bool) -> None:
        """Store a stream's timestamp on the row, unless the claim is lost."""
        self._notes.setdefault("streams", {})[str(ordinal)] = {"ts": ts, "stopped": stopped}
        text = json.dumps(self._notes)
        for _ in range(NOTE_TRIES):
            answer = await self._engine.note_event(self._event.id, self._event.claim, text)
            if answer is not Settled.BUSY:
                return
            await asyncio.sleep(NOTE_PAUSE)


class Stream:
    """A reply that grows. slack-sdk buffers its text and sends it as it accumulates."""

    def __init__(
        self,
        client: AsyncWebClient,
        notebook: Notebook,
        ordinal: int,
        metadata: dict[str, Any],
        arguments: dict[str, Any],
        check_claim: Callable[[], Awaitable[None]],
    ) -> None:
        self._client = client
        self._notebook = notebook
        self._ordinal = ordinal
        self._metadata = metadata
        self._arguments = arguments
        self._check_claim = check_claim
        self._earlier = notebook.stream(ordinal)
        self._text: list[str] = []
        self._live: Any = None

    @property
    def ts(self) -> str | None:
        """The message's timestamp; ``None`` before Slack has any of it."""
        ts = self._earlier.get("ts") or (self._live.ts if self._live is not None else None)
        return str(ts) if ts else None

    async def __aenter__(self) -> Self:
        if not self._earlier:
            self._live = await self._client.chat_stream(**self._arguments)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:  # after an error the next attempt finishes the message
            await self._stop()

    async def append(self, text: str) -> None:
        """Append Markdown text.

        Raises:
            SlackApiError: Slack refused it.
        """
        self._text.append(text)
        if self._live is None:
            return
        await self._check_claim()
        began = self._live.ts is None
        await self._live.append(markdown_text=text)
        if began and self._live.ts is not None:
            await self._notebook.note_stream(self._ordinal, self._live.ts, stopped=False)

    async def _stop(self) -> None:
        if self._earlier.get("stopped"):
            return
        await self._check_claim()
        if self._live is not None:
            await self._live.stop(metadata=self._metadata)
        else:
            await self._replace()
        if self.ts:
            await self._notebook.note_stream(self._ordinal, self.ts, stopped=True)

    async def _replace(self) -> None:
        """Finish an earlier attempt's message with the whole text of this attempt."""
        channel = self._arguments["channel"]
        try:
            await self._client.chat_stopStream(channel=channel, ts=str(self.ts))
        except SlackApiError as error:
            if slack_error(error) != "message_not_in_streaming_state":
                raise
        await self._client.chat_update(
            channel=channel, ts=str(self.ts), markdown_text="".join(self._text), metadata=self._metadata
        )
