"""Say in Slack what a model says: streamed into a thread, posted in a channel, or not at all."""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from slack_sdk.errors import SlackApiError

from surelane.events import Event
from surelane.slack import Place, place_of
from surelane_worker.handling.context import Context
from surelane_worker.slack.limits import SlackBusyError
from surelane_worker.slack.stream import LONGEST, Stream, end_of_line

CHANNEL = re.compile(r"[CDG][A-Z0-9]+", re.ASCII)
"""A channel's id. A job's payload may have another word there, such as ``slack``."""
ALARM = re.compile(r"<!(?=channel|here|everyone|subteam)")
"""What would notify a whole channel. A model may have been asked for it by any text that it read."""
QUIET = "<\u200b!"
_PERHAPS = re.compile(r"<(!\w{0,7})?$")
"""The end of a text that the next one may complete to an alarm."""


class Voice:
    """What one turn says in Slack."""

    def __init__(self, event: Event, ctx: Context) -> None:
        self._event = event
        self._ctx = ctx
        self.place: Place = place_of(event.payload)

    @property
    def heard(self) -> bool:
        return bool(CHANNEL.fullmatch(self.place.channel or ""))

    @property
    def _streams(self) -> bool:
        """Whether Slack takes a stream: in a thread, and in a channel for a user only."""
        place = self.place
        direct = (place.channel or "").startswith("D")
        return self.heard and bool(place.thread_ts) and (direct or bool(place.team and place.user))

    async def say(self, text: str) -> None:
        """Post a text, once for the event."""
        if self.heard:
            await self._ctx.slack.reply(self._event, text)

    async def think(self) -> None:
        """Show that work is in progress, where Slack has a place for it."""
        if self._streams:
            with suppress(SlackApiError, SlackBusyError):
                await self._ctx.slack.set_status(self._event, "is thinking…")

    @asynccontextmanager
    async def speech(self, *, held: bool = False) -> AsyncIterator["Speech"]:
        """Say a text in parts. A later attempt finishes the message that this one began.

        ``held``: nothing is said yet. :meth:`post` says it later.
        """
        if held or not self._streams:
            speech = Speech(None)
            yield speech
            await speech.end()
            if not held:
                await self.post(speech.text, speech.below)
            return
        async with self._ctx.slack.stream(self._event) as stream:
            speech = Speech(stream)
            yield speech
            await speech.end()

    async def post(self, text: str, below: Sequence[dict[str, Any]] = ()) -> None:
        """Say a whole text, in several messages if it is long."""
        text = ALARM.sub(QUIET, text)
        if not (self.heard and text.strip()):
            return
        while text:
            fits = len(text) if len(text) <= LONGEST else end_of_line(text, LONGEST)
            part, text = text[:fits], text[fits:]
            blocks = [{"type": "markdown", "text": part}, *(() if text else below)]
            await self._ctx.slack.reply(self._event, part, blocks=blocks)


@dataclass(slots=True)
class Speech:
    """One text that grows.

    Attributes:
        stream: where it is streamed; ``None``: it is only collected.
        below: blocks for the end of the message.
    """

    stream: Stream | None
    text: str = ""
    below: Sequence[dict[str, Any]] = ()
    _held: str = ""

    async def add(self, part: str) -> None:
        self._held += part
        perhaps = _PERHAPS.search(self._held)
        cut = perhaps.start() if perhaps else len(self._held)
        now, self._held = self._held[:cut], self._held[cut:]
        await self._say(now)

    async def end(self) -> None:
        """Say what was held back, and end the message."""
        rest, self._held = self._held, ""
        await self._say(rest)
        if self.stream is not None:
            await self.stream.stop(blocks=self.below)

    async def _say(self, text: str) -> None:
        quiet = ALARM.sub(QUIET, text)
        self.text += quiet
        if self.stream is not None and quiet:
            await self.stream.append(quiet)
