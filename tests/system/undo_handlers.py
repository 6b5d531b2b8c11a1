"""Handle the events of the tests of undos in real worker processes."""

import asyncio
import os
import signal
from typing import Any

from surelane_worker import Context, Event, Handlers
from tests.system.durable_handlers import Log

handlers = Handlers()
PARTS = ("flight", "hotel", "car")


async def book_all(event: Event, ctx: Context) -> None:
    """Book three parts, each with its undo. Die where the payload says so."""
    log, payload = Log(event), event.payload
    dies = set(payload.get("dies", ()))

    def die(where: str) -> None:
        if where in dies:
            log.die_once(where)

    async def book(part: str) -> str:
        die(f"in {part}")
        log.add(f"booked {part}")
        return f"{part} 1"

    async def undo(part: str) -> None:
        die(f"in undo {part}")
        log.add(f"undoes {part}")
        if log.path.read_text().splitlines().count(f"undoes {part}") <= payload.get("fails", {}).get(part, 0):
            raise LookupError(f"no {part}")
        if part in payload.get("hangs", ()):
            await asyncio.sleep(60)
        log.add(f"undid {part}")

    for part in PARTS:
        die(f"before {part}")
        await ctx.undo(part, undo, part, **payload.get("bounds", {}))
        die(f"with undo {part}")
        await ctx.step(part, book, part)
        die(f"after {part}")


@handlers.on("trip", backoff="1ms")
async def trip(event: Event, ctx: Context) -> Any:
    """Book, and end as the payload says."""
    log = Log(event)
    await book_all(event, ctx)
    match event.payload.get("how"):
        case "fail":
            raise RuntimeError("no visa")
        case "fail once":
            log.die_once("failing")
        case "wait":
            await ctx.wait_for("answer")
            await ctx.step("pay", lambda: log.add("paid"))
        case "hang":
            log.add("hangs")
            await asyncio.sleep(60)
    return "booked"


@handlers.on("trip-once", max_attempts=1, backoff="1ms")
async def trip_once(event: Event, ctx: Context) -> Any:
    """The same with one attempt."""
    return await trip(event, ctx)


@handlers.on("trip-timed", max_attempts=1, backoff="1ms", timeout="500ms")
async def trip_timed(event: Event, ctx: Context) -> Any:
    """The same within half a second."""
    return await trip(event, ctx)


@handlers.on("trip-in-thread", max_attempts=1)
def trip_in_thread(event: Event, ctx: Context) -> None:
    """Fail in a synchronous handler."""
    log = Log(event)
    for part in PARTS:
        ctx.run(ctx.undo(part, log.add, f"undid {part}"))
        ctx.run(ctx.step(part, log.add, f"booked {part}"))
    raise RuntimeError("no visa")


@handlers.on("at-once", max_attempts=1)
async def at_once(event: Event, ctx: Context) -> None:
    """Fail with three tasks, two of which wait."""
    log = Log(event)

    async def part(name: str) -> None:
        await ctx.undo(name, lambda: log.add(f"undid {name}"))
        await ctx.step(name, lambda: log.add(f"booked {name}"))
        if name != "flight":
            await ctx.wait_for(name)

    await asyncio.gather(*map(part, PARTS))


@handlers.on("parent")
async def parent(event: Event, ctx: Context) -> Any:
    """Await a trip."""
    log = Log(event)
    await ctx.undo("parent", log.add, "undid parent")
    return await ctx.run("trip", event.payload)


@handlers.on("changed", max_attempts=1)
async def changed(event: Event, ctx: Context) -> None:
    """Forget, from the second claim on, an undo that the first one registered."""
    log = Log(event)
    await ctx.undo("kept", log.add, "undid kept")
    if event.claim == 1:
        await ctx.undo("forgotten", log.add, "undid forgotten")
    raise RuntimeError("no visa")


@handlers.on("after", max_attempts=1)
async def after(event: Event, ctx: Context) -> None:
    """Register each undo after its step, with the step's result; die between the second two."""
    log = Log(event)

    async def book(part: str) -> str:
        log.add(f"booked {part}")
        return f"{part} 17"

    for part in PARTS:
        booking = await ctx.step(part, book, part)
        if part == "hotel":
            log.die_once("between")
        await ctx.undo(part, lambda booking=booking: log.add(f"undid {booking}"))


@handlers.on("killing", max_attempts=1)
async def killing(event: Event, ctx: Context) -> None:
    """Register an undo that kills its worker whenever it runs."""
    log = Log(event)

    def deadly() -> None:
        log.add("deadly")
        os.kill(os.getpid(), signal.SIGKILL)

    await ctx.undo("deadly", deadly)
    raise RuntimeError("no visa")


@handlers.on("telling", max_attempts=1)
async def telling(event: Event, ctx: Context) -> None:
    """Die where a reply comes next."""
    log = Log(event)
    await ctx.undo("told", lambda: log.add("undid told"))
    log.die_once("before the reply")
    await ctx.slack.reply(event, "done", channel="C1")
    log.add("replied")


@handlers.on_failure("trip", "trip-once")
async def hook(event: Event, _: Context) -> None:
    """Note that the event has ended."""
    Log(event).add(f"hook {event.payload['failure']['outcome']}")
