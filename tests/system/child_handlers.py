"""Handle events that start children, in real worker processes."""

import asyncio
import time
from typing import Any

from surelane_worker import ChildError, Context, Continuation, Event, FanOut, Handlers, Job
from tests.system.durable_handlers import Log

handlers = Handlers()


def noted(event: Event, what: str) -> None:
    """Note what runs, where the payload names a log."""
    if "log" in event.payload:
        Log(event).add(what)


@handlers.on("part")
async def part(event: Event, ctx: Context) -> Any:
    """End as the payload says."""
    noted(event, f"ran part {event.payload.get('n')}")
    if event.payload.get("dies"):
        Log(event).die_once("in part")
    if event.payload.get("waits"):
        await ctx.wait_for("go")
    if "fails" in event.payload:
        raise ValueError(event.payload["fails"])
    if event.payload.get("anew"):
        return ctx.continue_as_new({"n": 7})
    if event.payload.get("fans"):
        return FanOut([Job("part", {"n": 1})], Continuation("part", {"n": 8}))
    return event.payload.get("n")


@handlers.on("parent")
async def parent(event: Event, ctx: Context) -> Any:
    """Run children as the payload says, and fail afterwards as often as it says."""
    noted(event, "ran parent")
    children = [ctx.run("part", given, **event.payload.get("how", {})) for given in event.payload["parts"]]
    try:
        results = await asyncio.gather(*children)
    except ChildError as error:
        if event.payload.get("raises"):
            raise
        return [error.kind, error.key, error.outcome, error.reason, error.message]
    if event.claim < event.payload.get("claims", 0):
        raise RuntimeError("once more")
    return results


async def until_ended(event: Event, ctx: Context, children: int) -> None:
    """Wait until so many children of the event have completed."""
    async with asyncio.timeout(60):
        while True:
            found = await ctx.queue.children(event.id)
            if sum(child.status == "completed" for child in found) == children:
                return
            await asyncio.sleep(0.01)


@handlers.on("mortal-parent")
async def mortal_parent(event: Event, ctx: Context) -> Any:
    """Die at each boundary once, and so do the children."""
    log = Log(event)
    log.die_once("at start")
    results = [await ctx.run("part", {"log": event.payload["log"], "n": 1, "dies": True})]
    log.die_once("after one")
    more = [ctx.run("part", {"log": event.payload["log"], "n": n}) for n in (2, 3)]
    results += await asyncio.gather(*more)
    log.die_once("after more")
    last = asyncio.create_task(ctx.run("part", {"log": event.payload["log"], "n": 4}))

    async def until_started() -> None:
        await until_ended(event, ctx, 4)
        log.die_once("before the suspension")

    await ctx.step("until started", until_started)
    return [*results, await last]


@handlers.on("grandparent")
async def grandparent(event: Event, ctx: Context) -> Any:
    """Run a parent, whose children run under it."""
    return await ctx.run("parent", {"parts": event.payload["parts"]}, key="one")


@handlers.on("sync-parent")
def sync_parent(_event: Event, ctx: Context) -> Any:
    """Run a child in a synchronous handler."""
    return ctx.run(ctx.run("part", {"n": 3}))


@handlers.on("busy-parent")
async def busy_parent(event: Event, ctx: Context) -> Any:
    """Go on in a step until the child has ended."""

    async def until_child() -> int:
        await until_ended(event, ctx, 1)
        return event.claim

    child = asyncio.create_task(ctx.run("part", {"n": 1, **event.payload}))
    return [await ctx.step("busy", until_child), await child]


@handlers.on("leaving")
async def leaving(_event: Event, ctx: Context) -> Any:
    """End without awaiting the child: a sleep ends first."""
    child = asyncio.create_task(ctx.run("part", {"waits": True}))
    await asyncio.wait({child, asyncio.create_task(ctx.sleep("50ms"))}, return_when="FIRST_COMPLETED")
    return child.done()


@handlers.on("other-payload")
async def other_payload(event: Event, ctx: Context) -> Any:
    """Call the child with other values when the handler runs again."""
    return await ctx.run("part", {"n": event.claim})


@handlers.on("secretive")
async def secretive(_event: Event, ctx: Context) -> Any:
    """Give children words that the database must not have."""
    word = "hidden-word"
    assert await ctx.run("part", {"n": word}) == word
    try:
        await ctx.run("part", {"fails": word}, max_attempts=1)
    except ChildError as error:
        return error.message == word


@handlers.on("sequence")
async def sequence(event: Event, ctx: Context) -> Any:
    """Run children one after another."""
    return [await ctx.run("part", given) for given in event.payload["parts"]]


@handlers.on("clock")
async def clock(event: Event, ctx: Context) -> Any:
    """Run children one after another and return how long each took, in seconds."""
    if "times" not in event.payload:
        return None
    took = []
    for _ in range(event.payload["times"]):
        began = await ctx.step("now", time.time)
        await ctx.run("clock", {})
        took.append(await ctx.step("now", time.time) - began)
    return took
