"""The face of virtual time: its clock, threads, deaths and faults."""

import asyncio
import time
from typing import Any

import pytest

from surelane.testing import fleet, virtual
from surelane_worker import Context, Event, Handlers


@virtual
async def test_time_stands_still_while_a_thread_runs() -> None:
    handlers = Handlers()

    @handlers.on("sync")
    def sync(event: Event, ctx: Context) -> list[Any]:
        before, real = time.monotonic(), time.process_time()
        while time.process_time() < real + 0.02:
            pass
        still = time.monotonic() == before
        slept = ctx.run(ctx.step("nap", asyncio.sleep, 5, "slept"))
        return [still, slept, ctx.run(ctx.step("in thread", lambda: event.payload["number"]))]

    async with fleet(handlers) as f:
        events = [await f.enqueue("sync", {"number": number}) for number in range(5)]
        assert [await event.result() for event in events] == [[True, "slept", number] for number in range(5)]


@virtual
async def test_a_worker_that_is_cut_off_stands_still_or_loses_its_database_goes_on() -> None:
    handlers = Handlers()

    @handlers.on("slack.app_mention")
    async def mentioned(event: Event, ctx: Context) -> None:
        await asyncio.sleep(1)
        await ctx.slack.reply(event, event.slack["text"])

    async with fleet(handlers) as f:
        (worker,) = f.workers
        events = []
        for trouble in ("none", "cut off", "frozen", "restarted"):
            events.append(await f.mention(trouble))
            await f.sleep(0.5)
            if trouble == "cut off":
                f.cut_off(worker, "20s")
            elif trouble == "frozen":
                f.freeze(worker, "20s")
            elif trouble == "restarted":
                await f.restart_database("20s")
        for event in events:
            await f.until(event.ended)
        assert [f.replies(event) for event in events] == [["none"], ["cut off"], ["frozen"], ["restarted"]]


@virtual
async def test_a_wait_that_is_too_long_fails_and_tells_where_the_events_are() -> None:
    handlers = Handlers()

    @handlers.on("wrong")
    async def wrong(_: Event, __: Context) -> None:
        raise ValueError("no")

    async with fleet(handlers) as f:
        event = await f.enqueue("wrong")
        with pytest.raises(
            AssertionError, match=r"not so within 5s\nevent 1, wrong, after 2 attempts, is retry"
        ):
            await f.until(event.ended, "5s")


def test_the_real_clock_is_back_after_a_virtual_test() -> None:
    assert time.time() > 1_700_000_000
    assert time.monotonic is not time.perf_counter
