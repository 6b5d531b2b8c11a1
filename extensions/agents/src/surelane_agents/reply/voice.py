"""Say in Slack what a model says: streamed into a thread, posted in a channel, or not at all."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from slack_sdk.errors import SlackApiError

from surelane.slack import CHANNEL_ID, Place, place_of
from surelane_agents.context.thread import quiet
from surelane_agents.reply.markdown import settled
from surelane_agents.reply.session import TurnSession
from surelane_agents.reply.shown import is_blank
from surelane_agents.reply.tables import chunks_of
from surelane_worker import Context, Event
from surelane_worker.slack.chunks import content_of, cut, open_fence
from surelane_worker.slack.client import slack_error
from surelane_worker.slack.limits import SlackBusyError
from surelane_worker.slack.replies import SCOPE
from surelane_worker.slack.stream import Stream

_ROWS = re.compile(r"^(?: {0,3}\|.*\n)*+(?: {0,3}\|.*)?\Z", re.MULTILINE)
"""The lines at the end of a text that may be a table's. They are said once the table is complete."""
SPECIAL = re.compile(r"[|&<>]")
"""What stands for itself in a code block alone."""
TASKS = "agent's tasks"
BLOCKS_REFUSED = frozenset({"invalid_blocks", "invalid_blocks_format", "msg_blocks_too_long"})
"""Slack's errors after which it takes the same message as a text."""
UNFURLED: dict[str, Any] = {"unfurl_links": False, "unfurl_media": False}
"""Slack fetches no link of a message."""
PLAN = {"type": "plan_update", "title": "Steps"}


class Voice:
    """What one turn says in Slack."""

    def __init__(self, event: Event, ctx: Context, *, unfurl: bool = False) -> None:
        self._event = event
        self._ctx = ctx
        self.look: dict[str, Any] = {} if unfurl else UNFURLED
        self._tasks: Stream | None = None
        self.place: Place = place_of(event.payload)
        self.session = TurnSession(event, ctx, self.place)

    @property
    def heard(self) -> bool:
        return bool(CHANNEL_ID.fullmatch(self.place.channel or ""))

    @property
    def _streams(self) -> bool:
        """Whether Slack takes a stream: in a thread, and in a channel for a user only."""
        place = self.place
        direct = (place.channel or "").startswith("D")
        return self.heard and bool(place.thread_ts) and (direct or bool(place.team and place.user))

    async def say(self, text: str) -> None:
        """Post a text, once for the event."""
        if self.heard:
            await self._ctx.slack.reply(self._event, text, **self.look)

    async def think(self) -> None:
        """Show that work is in progress, where Slack has a place for it."""
        if self._streams and not await self.session.process():
            await self._ctx.slack.set_status(self._event, "is thinking…")

    @asynccontextmanager
    async def speech(self, *, held: bool = False) -> AsyncIterator["Speech"]:
        """Say a text in parts. A later attempt finishes the message that this one began.

        ``held``: nothing is said yet. :meth:`post` says it later.
        """
        streams = self._streams and not held
        look = self.look | ({"session_status": "processing"} if self.session.is_open else {})
        async with self._ctx.slack.stream(self._event, **look) if streams else nullcontext() as stream:
            speech = Speech(stream)
            try:
                yield speech
            except BaseException as error:
                await speech.stop(at_once=not isinstance(error, Exception))
                raise
            await speech.end()
        if not (streams or held):
            await self.post(speech.text, speech.below)

    async def post(self, text: str, below: Sequence[dict[str, Any]] = ()) -> None:
        """Say a whole text, in several messages if it is long."""
        chunks = chunks_of(quiet(text)) if self.heard and not is_blank(text) else []
        while chunks:
            now, chunks = cut([], chunks)
            content = content_of(now, () if chunks else below)
            try:
                await self._ctx.slack.reply(self._event, **content, **self.look)
            except SlackApiError as error:
                if slack_error(error) not in BLOCKS_REFUSED:
                    raise
                await self.say(content["text"])

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Show what the turn's tools do, in one message for the turn, where Slack takes a stream."""
        if not self._streams:
            yield
            return
        scope = SCOPE.set(TASKS)
        self._tasks = self._ctx.slack.stream(self._event, task_display_mode="plan")
        SCOPE.reset(scope)
        async with self._tasks:
            yield
            with suppress(SlackApiError, SlackBusyError):
                await self._tasks.stop()

    async def show(self, task: str, title: str, done: Mapping[str, Any] | None = None) -> None:
        """Show that a tool's call is in progress, or done."""
        if self._tasks is None:
            return
        status = "in_progress" if done is None else "error" if "failed" in done else "complete"
        update = {"type": "task_update", "id": task, "title": title, "status": status}
        with suppress(SlackApiError, SlackBusyError):
            await self._tasks.append(chunks=[PLAN, update])


@dataclass(slots=True)
class Speech:
    """One text that grows."""

    stream: Stream | None
    """Where it is streamed; ``None``: it is only collected."""
    text: str = ""
    below: Sequence[dict[str, Any]] = ()
    """Blocks for the end of the message."""
    _held: str = ""
    _saying: asyncio.Task[None] | None = None

    @property
    def said(self) -> bool:
        """Whether there is something to say."""
        return self._saying is not None or bool(self.text) or not is_blank(self._held)

    async def add(self, part: str) -> None:
        """Say a part beside its caller, who does not wait for Slack. What fails there is raised by a later call."""
        self._held += part
        if self._saying is not None and self._saying.done():
            self._saying.result()
        if self.said and (self._saying is None or self._saying.done()):
            self._saying = asyncio.create_task(self._say_ready())
            await asyncio.sleep(0)

    async def _say_ready(self) -> None:
        while ready := self._ready():
            now, self._held = self._held[:ready], self._held[ready:]
            await self._say(now)

    async def stop(self, *, at_once: bool) -> None:
        """Say what has come and can be said, unless it is to stop ``at_once``. The next attempt ends the message."""
        if self._saying is not None:
            if at_once:
                self._saying.cancel()
            await asyncio.wait([self._saying])

    async def end(self) -> None:
        """Say what was held back, and end the message."""
        if self._saying is not None:
            await self._saying
        rest, self._held = self._held, ""
        if self.text or not is_blank(rest):
            await self._say(rest)
        if self.stream is not None:
            await self.stream.stop(blocks=self.below)

    def _ready(self) -> int:
        """Return how much of the text can be said. An alarm, a reference, code in a line and a table are said whole."""
        held, ready = self._held, settled(self._held)
        line = 0 if not self.text or self.text.endswith("\n") else (held.find("\n") + 1 or len(held))
        rows = _ROWS.search(held, line)
        begins = rows.start() if rows else ready
        if open_fence(self.text + held[:begins]):
            return held.rfind("\n", 0, ready) + 1
        return min(ready, begins)

    async def _say(self, text: str) -> None:
        text = quiet(text)
        if self.stream is not None and text:
            fence = open_fence(self.text) if SPECIAL.search(text) else None
            line = self.text[self.text.rfind("\n") + 1 :]
            await self.stream.append(chunks=chunks_of(text, fence[0] if fence else "", line))
        self.text += text
