# ruff: noqa: ARG001 - a handler takes both arguments, used or not
"""Handle events of limited kinds in real worker processes."""

import asyncio
import time

from surelane_worker import Context, Event, Handlers, Limit

handlers = Handlers()


@handlers.on("two-at-once", limit=Limit(concurrency=2))
async def two_at_once(event: Event, ctx: Context) -> dict[str, float]:
    began = time.monotonic()
    await asyncio.sleep(0.01)
    return {"began": began, "ended": time.monotonic()}


@handlers.on("five-a-day", limit=Limit(rate="5/1d"))
async def five_a_day(event: Event, ctx: Context) -> None: ...


@handlers.on("per-customer", limit=Limit(rate="1/1d", per=lambda payload: payload["customer"]))
async def per_customer(event: Event, ctx: Context) -> None: ...


@handlers.on("start")
async def start(event: Event, ctx: Context) -> list[int]:
    """Enqueue jobs of a kind whose limit is per key of a function."""
    return [await ctx.queue.enqueue("per-customer", {"customer": name}) for name in ("ada", "ada", "bob")]
