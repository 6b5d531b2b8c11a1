"""Keep what a model says while it says it, for who follows the turn over ``/v1/jobs/{id}/stream``."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from surelane_agents.calls import AgentCalls
from surelane_service.lifecycle import apart, sleep_unless
from surelane_worker import Context, Event
from surelane_worker.handling.context import attempt_of
from surelane_worker.handling.fence import Fence

BETWEEN = 1.0
"""Seconds between two writes, unless the response ends."""


class Transcript:
    """What one response says. A response that is asked for again replaces what was kept of it."""

    def __init__(self, fence: Fence, part: int) -> None:
        self._fence, self._part, self._store = fence, part, AgentCalls(fence.engine).store_said
        self._text, self._stored = "", 0
        self._news, self._ended = asyncio.Event(), asyncio.Event()

    def add(self, text: str) -> None:
        self._text += text
        self._news.set()

    def end(self) -> None:
        self._ended.set()
        self._news.set()

    async def write(self) -> None:
        """Store what is said, until the end. Even of a silent response an earlier attempt may have kept something."""
        ended = False
        while not ended:
            await self._news.wait()
            self._news.clear()
            ended, text = self._ended.is_set(), self._text[self._stored :]
            if text or (ended and not self._stored):
                await self._fence.send(self._store, self._part, self._stored, text)
                self._stored += len(text)
            if not ended:
                await sleep_unless(self._ended, BETWEEN)


@asynccontextmanager
async def transcript(event: Event, ctx: Context, part: int) -> AsyncIterator[Transcript | None]:
    """Keep what the response number ``part`` of the turn says in the block, if the payload has ``"stream": true``."""
    if event.payload.get("stream") is not True:
        yield None
        return
    kept = Transcript(attempt_of(ctx).steps.fence, part)
    writing = apart(kept.write())
    try:
        yield kept
        kept.end()
        await writing
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
