"""The face of virtual time: its clock, threads, deaths and faults."""

import asyncio
import time
from typing import Any

import pytest

from surelane.testing import fleet, virtual
from surelane_worker import Context, Event, Handlers


@virtual
async def test_five_minutes_pass_at_once_and_clocks_show_them() -> None:
    handlers = Handlers()

    @handlers.on("later")
    async def later(_: Event, ctx: Context) -> float:
        await ctx.sleep("3m")
        return time.monotonic()

    async with fleet(handlers) as f:
        event = await f.enqueue("later", run_in="2m")
        assert 300 < await event.result() < 305
        assert f.now == pytest.approx(300, abs=12)


@virtual
async def test_a_stored_step_is_not_run_again() -> None:
    handlers, ran = Handlers(), list[str]()

    @handlers.on("slack.app_mention")
    async def mentioned(event: Event, ctx: Context) -> None:
        await ctx.step("a", ran.append, "a")
        await ctx.step("b", ran.append, "b")
        await ctx.slack.reply(event, "done")

    async with fleet(handlers, workers=2) as f:
        with f.killed_at("step a"):
            event = await f.mention("<@U0> hello")
            await f.until(event.ended)
        assert ran == ["a", "b"]
        assert f.replies(event) == ["done"]


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
async def test_a_killed_worker_is_replaced_by_another_one() -> None:
    handlers, ran = Handlers(), list[int]()

    @handlers.on("long")
    async def long(event: Event, _: Context) -> int:
        ran.append(event.claim)
        await asyncio.sleep(30)
        return event.claim

    async with fleet(handlers, workers=2) as f:
        event = await f.enqueue("long")
        await f.until(lambda: ran)
        await f.kill(next(each for each in f.workers if each.runs(event)))
        assert await event.result() == 2
        assert f.now < 50


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
async def test_a_worker_drains_what_it_runs_and_another_goes_on() -> None:
    handlers = Handlers()

    @handlers.on("long")
    async def long(_: Event, __: Context) -> None:
        await asyncio.sleep(10)

    async with fleet(handlers, settings={"SURELANE_CONCURRENCY": "1"}) as f:
        events = [await f.enqueue("long") for _ in range(2)]
        await f.sleep(1)
        await f.drain()
        assert sorted([await each.why() for each in events]) == ["completed", "no_worker"]
        f.start()
        for each in events:
            await each.result()


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
