"""Keep what a model says while it says it, for who follows the turn over ``/v1/jobs/{id}/stream``."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from surelane_agents.calls import AgentCalls
from surelane_service.lifecycle import apart, sleep_unless
from surelane_worker import Context, Event
from surelane_worker.handling.context import attempt_of

BETWEEN = 1.0
"""Seconds between two writes, unless the response ends."""


@asynccontextmanager
async def transcript(event: Event, ctx: Context, part: int) -> AsyncIterator[Callable[[str], None] | None]:
    """Yield what keeps the texts of the response number ``part`` of the turn, if the payload has ``"stream": true``.

    A response that is asked for again replaces what was kept of it.
    """
    if event.payload.get("stream") is not True:
        yield None
        return
    fence, said = attempt_of(ctx).steps.fence, list[str]()
    news, ended = asyncio.Event(), asyncio.Event()

    def add(text: str) -> None:
        said.append(text)
        news.set()

    async def write() -> None:
        """Store what is said, until the end. Even of a silent response an earlier attempt may have kept something."""
        stored, over = 0, False
        while not over:
            await news.wait()
            news.clear()
            over, text = ended.is_set(), "".join(said)
            said.clear()
            if text or (over and not stored):
                await fence.send(AgentCalls(fence.engine).store_said, part, stored, text)
                stored += len(text)
            if not over:
                await sleep_unless(ended, BETWEEN)

    writing = apart(write())
    try:
        yield add
        ended.set()
        news.set()
        await writing
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
