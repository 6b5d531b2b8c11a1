"""Handle the events of the measured worker: only report each call."""

import asyncio
import random
import time
from time import perf_counter

from benchmarks.programs import tally
from surelane_worker import Context, Event, Handlers, Limit

TIMED = "timed:"
"""The prefix of the item key of an event whose start is timed. Its number follows."""
NAP = 0.1
"""Seconds that the waiting handler takes."""
SHORT_NAP = 0.01
"""Seconds that the napping handler takes: less than any call of Slack's API."""

SEVERAL = 8
"""How many of the kind ``few`` run at once in the whole fleet."""
RATED, PERIOD = 300, 10
"""How many of the kind ``rated`` begin in so many seconds."""

counting = Handlers()
far = Handlers()
reading = Handlers()
limited = Handlers()
waiting = Handlers()
napping = Handlers()
busy = Handlers()
answering = Handlers()
durable = Handlers()
returning = Handlers()
shaped = Handlers()
_tally = tally.Tally()


@counting.on("bench")
async def count(event: Event, ctx: Context) -> None:  # noqa: ARG001 - a handler's signature
    """Do nothing."""
    if event.item_key is not None and event.item_key.startswith(TIMED):
        tally.started(int(event.item_key.removeprefix(TIMED)))
    else:
        _tally.add()


@reading.on("bench")
async def read(event: Event, ctx: Context) -> None:  # noqa: ARG001
    """Read the payload, as every handler of Slack's events does."""
    assert "number" in event.payload
    _tally.add()


@far.on("bench", limit=Limit(concurrency=10_000, rate="1000000/1m"))
async def count_far_from_the_limit(event: Event, ctx: Context) -> None:  # noqa: ARG001
    """Do nothing."""
    _tally.add()


async def timed(event: Event, ctx: Context) -> dict[str, float]:  # noqa: ARG001
    """Wait for a short time; return when that began and ended, by the machine's clock."""
    began = time.monotonic()
    await asyncio.sleep(SHORT_NAP)
    return {"began": began, "ended": time.monotonic()}


limited.on("few", limit=Limit(concurrency=SEVERAL))(timed)
limited.on("rated", limit=Limit(rate=f"{RATED}/{PERIOD}s"))(timed)


@waiting.on("bench")
async def wait(event: Event, ctx: Context) -> None:  # noqa: ARG001
    """Wait, as a handler that calls Slack does."""
    await asyncio.sleep(NAP)


@napping.on("bench")
async def nap(event: Event, ctx: Context) -> None:  # noqa: ARG001
    """Wait for a short time, then count the event."""
    await asyncio.sleep(SHORT_NAP)
    _tally.add()


@returning.on("bench")
async def give_back(event: Event, ctx: Context) -> dict[str, str]:  # noqa: ARG001
    """Read the payload and return what was said, after a short time."""
    await asyncio.sleep(SHORT_NAP)
    _tally.add()
    return {"said": event.slack["text"]}


@busy.on("bench")
async def occupy(event: Event, ctx: Context) -> None:  # noqa: ARG001
    """Take a while, now more, now less; report each end, and the start of an event whose start is timed."""
    if event.item_key is not None and event.item_key.startswith(TIMED):
        tally.started(int(event.item_key.removeprefix(TIMED)))
    await asyncio.sleep(NAP * random.uniform(0.5, 1.5))
    tally.ended()


@answering.command("/bench", answers=True)
async def answer(event: Event, ctx: Context) -> bool:
    """Answer in the HTTP response."""
    return await ctx.ack(text=event.payload["text"])


@answering.on("slack.block_actions")
async def clicked(event: Event, ctx: Context) -> str | None:
    """Report the start of a numbered click, and keep in history that its trigger had expired."""
    tally.started(int(event.payload["actions"][0]["value"]))
    return "expired" if ctx.trigger_expired else None


@answering.on("bench", "slack.app_mention")
async def ordinary(event: Event, ctx: Context) -> None:  # noqa: ARG001
    """Take a while for each event of a backlog, and less for others."""
    await asyncio.sleep(NAP * random.uniform(0.5, 1.5) if event.kind == "bench" else SHORT_NAP)


@shaped.on("slack.app_mention")
async def last(event: Event, ctx: Context) -> dict[str, float]:  # noqa: ARG001
    """Wait for as many seconds as the message says; return when that began and ended, by the clock."""
    text, began = event.slack["text"], time.time()
    await asyncio.sleep(float(text) if text[0].isdigit() else 0)
    return {"began": began, "ended": time.time()}


@durable.on("bench")
async def take_steps(event: Event, ctx: Context) -> list[float]:
    """Take as many empty steps as the payload says; return how long each took, in seconds."""
    took = []
    for _ in range(event.payload["steps"]):
        began = perf_counter()
        await ctx.step("empty", _empty)
        took.append(perf_counter() - began)
    return took


@durable.on("bench-replay")
async def replay(event: Event, ctx: Context) -> list[float]:
    """Take many steps; report that, and wait to be killed. Return when the replay began and ended, by the clock."""
    began = time.time()
    for _ in range(event.payload["steps"]):
        await ctx.step("empty", _empty)
    if event.claim == 1:
        tally.started(0)
        await asyncio.sleep(600)
    return [began, time.time()]


@durable.on("bench-child")
async def child(event: Event, ctx: Context) -> list[float]:  # noqa: ARG001
    """Take a short time; return when that began and ended, by the clock."""
    began = time.time()
    await asyncio.sleep(SHORT_NAP)
    return [began, time.time()]


@durable.on("bench-parent")
async def parent(event: Event, ctx: Context) -> list[float]:
    """Run children one after another; return how long each took beyond its handler, in seconds."""
    took = []
    for _ in range(event.payload["children"]):
        asked = await ctx.step("now", time.time)
        began, ended = await ctx.run("bench-child", {})
        took.append(await ctx.step("now", time.time) - asked - (ended - began))
    return took


async def _empty() -> None:
    """Do nothing."""


@durable.on("bench-hang")
async def hang(event: Event, ctx: Context) -> None:  # noqa: ARG001
    """Run until it is cancelled; report when that was."""
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        tally.started(int((event.item_key or "").removeprefix(TIMED)))
        raise
