"""Handlers of the measured worker: they only report that they were called."""

import asyncio

from benchmarks.programs import tally
from surelane_worker import Context, Event, Handlers

TIMED = "timed:"
"""The item key of an event whose start is timed begins with this; its number follows."""
NAP = 0.1
"""Seconds the waiting handler takes."""
SHORT_NAP = 0.01
"""Seconds the napping handler takes: less than any call of Slack's."""

counting = Handlers()
waiting = Handlers()
napping = Handlers()
_tally = tally.Tally()


@counting.on("bench")
async def count(event: Event, ctx: Context) -> None:  # noqa: ARG001 - a handler's signature
    """Do nothing."""
    if event.item_key is not None and event.item_key.startswith(TIMED):
        tally.started(int(event.item_key.removeprefix(TIMED)))
    else:
        _tally.add()


@waiting.on("bench")
async def wait(event: Event, ctx: Context) -> None:  # noqa: ARG001
    """Take a while, as a handler that calls Slack does."""
    await asyncio.sleep(NAP)


@napping.on("bench")
async def nap(event: Event, ctx: Context) -> None:  # noqa: ARG001
    """Take a moment, then count the event."""
    await asyncio.sleep(SHORT_NAP)
    _tally.add()
