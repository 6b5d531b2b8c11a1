# ruff: noqa: ARG001 - a handler takes both arguments, used or not
"""Handle the workflow tests' events: the examples', and parts of a whole that take long enough for a kill."""

import asyncio
import os

from examples.agent_turn.handlers import handlers as agent_turn
from examples.cron.handlers import handlers as cron
from examples.dispatch.handlers import handlers as dispatching
from examples.orchestration.handlers import handlers as orchestration

from surelane_worker import Context, Continuation, Event, FanOut, Handlers, Job

handlers = Handlers()
for example in (cron, dispatching, orchestration, agent_turn):  # the last one includes the built-in handlers
    handlers.include(example)


@handlers.on("part")
async def part(event: Event, ctx: Context) -> int:
    """Take the payload's seconds, and count as one part."""
    await asyncio.sleep(event.payload.get("seconds", 0.01))
    return 1


@handlers.on("branch")
async def branch(event: Event, ctx: Context) -> FanOut:
    """Fan out into leaves."""
    leaves = [Job("part", {"seconds": 0.05}) for _ in range(event.payload["leaves"])]
    return FanOut(leaves, Continuation("sum"))


@handlers.on("sum")
async def add_up(event: Event, ctx: Context) -> dict[str, int]:
    """Return the sum of the children's results, and the worker's process id."""
    children = await ctx.queue.children(event.id)
    parts = [child.result["sum"] if child.kind == "sum" else child.result for child in children]
    return {"sum": sum(parts), "process": os.getpid()}


@handlers.on("endless")
async def endless(event: Event, ctx: Context) -> FanOut | int:
    """Count down to zero, one event after another, with a step in each."""
    left: int = event.payload["left"]
    assert await ctx.step("left", lambda: left) == left, "a successor has no steps"
    return ctx.continue_as_new({"left": left - 1}) if left else left
