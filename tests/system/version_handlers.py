"""Handle the events of the versions' tests: each set of handlers is that of one deployment."""

import asyncio
from collections.abc import Callable
from typing import Any

from surelane_worker import Context, Event, Handlers, Limit
from tests.system.durable_handlers import Log


def order_of(version: str) -> Callable[[Event, Context], Any]:
    """Return the function of a version. It pays, waits, ships, and says which version did so."""

    async def order(event: Event, ctx: Context) -> Any:
        log = Log(event)

        def act(what: str) -> str:
            log.add(f"{what} {version}")
            return version

        log.add(f"began {version} as {event.kind}")
        paid = await ctx.step("pay", act, "paid")
        if event.payload.get("dies"):
            log.die_once(f"after pay {version}")
        await ctx.wait_for("go", blocking=event.payload.get("blocking", False))
        shipped = await ctx.step("ship", act, "shipped")
        if event.payload.get("fails"):
            raise RuntimeError("no")
        if event.payload.get("anew"):
            return ctx.continue_as_new({**event.payload, "anew": False})
        return [paid, shipped, version]

    return order


unnamed, first, second, both, tenth = (Handlers() for _ in range(5))
unnamed.on("order")(order_of("1"))
first.on("order", version="1")(order_of("1"))
second.on("order", version="2")(order_of("2"))
both.on("order", version="1")(order_of("1"))
both.on("order", version="2")(order_of("2"))
tenth.on("order", version="2")(order_of("2"))
tenth.on("order", version="10")(order_of("10"))

first_limited, second_limited = Handlers(), Handlers()
first_limited.on("order", version="1", limit=Limit(1))(order_of("1"))
second_limited.on("order", version="2", limit=Limit(1))(order_of("2"))


@both.on_failure("order")
async def failed(event: Event, _: Context) -> None:
    """Note the kind of the event that failed."""
    Log(event).add(f"hook for {event.kind}")


@second.on("parent")
async def parent(event: Event, ctx: Context) -> Any:
    """Wait for a child whose handler has versions."""
    return await ctx.run("order", {"log": event.payload["log"]})


code = Handlers()
"""Handlers whose code the payload of the event says, by the number of the claim: as if it was changed between two."""


async def do(ctx: Context, log: Log, steps: list[str]) -> list[Any]:
    """Do what a list says: ``a`` is a step, ``~a`` a short sleep, ``?a`` a patch."""
    done: list[Any] = []
    for step in steps:
        if step.startswith("~"):
            await ctx.sleep("1ms", name=step[1:])
        elif step.startswith("?"):
            done.append(await ctx.patched(step[1:]))
        elif step.startswith("@"):
            done.append(await ctx.run(step[1:], {}))
        else:
            done.append(await ctx.step(step, lambda name=step: log.add(name)))
    return done


@code.on("code")
async def changed(event: Event, ctx: Context) -> Any:
    """Run the code of this claim; fail where the payload has more."""
    runs = event.payload["runs"]
    done = await do(ctx, Log(event), runs[min(event.claim, len(runs)) - 1])
    if event.claim < len(runs):
        raise RuntimeError("once more")
    return done


@code.on("code-in-thread")
def changed_in_thread(event: Event, ctx: Context) -> Any:
    """Do the same in a synchronous handler."""
    return ctx.run(_awaitable(ctx, event))


async def _awaitable(ctx: Context, event: Event) -> Any:
    runs = event.payload["runs"]
    done = await do(ctx, Log(event), runs[min(event.claim, len(runs)) - 1])
    if event.claim < len(runs):
        raise RuntimeError("once more")
    return done


@code.on("leaf")
async def leaf(_: Event, __: Context) -> str:
    """Be a child."""
    return "leaf"


@code.on("racing")
async def racing(event: Event, ctx: Context) -> Any:
    """Run two tasks, of which each is first in one attempt, and a step of the handler itself beside them."""
    log = Log(event)
    late = asyncio.Event()

    async def one() -> None:
        if event.claim > 1:
            await late.wait()
        await ctx.step("one", log.add, "one")

    async def other() -> None:
        if event.claim > 1:
            await ctx.step("other", log.add, "other")

    tasks = [asyncio.create_task(one()), asyncio.create_task(other())]
    if event.claim == 1:
        await tasks[0]
        raise RuntimeError("once more")
    await ctx.step("own", log.add, "own")  # while what "one" stored is not asked for
    late.set()
    await asyncio.gather(*tasks)
    return "done"


@code.on("timed")
async def timed(event: Event, ctx: Context) -> Any:
    """Give a step up in the first attempt, by a timeout of the handler's own."""
    log = Log(event)
    never = asyncio.Event()

    async def slow() -> None:
        log.add("slow")
        if event.claim == 1:
            await never.wait()

    try:
        async with asyncio.timeout(0.05 if event.claim == 1 else None):
            await ctx.step("slow", slow)
    except TimeoutError:
        pass
    await ctx.step("after", log.add, "after")
    if event.claim == 1:
        raise RuntimeError("once more")
    return "done"
