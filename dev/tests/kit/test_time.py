"""Time passes for durable handlers without waiting: sleeps, waits, tries of steps, schedules, children, successors."""

import asyncio
from typing import Any

import asyncpg
import pytest

from surelane.testing import Bot
from surelane_dev.testing.database import connected
from surelane_worker import Context, Event, Handlers
from surelane_worker.errors import ChildError

calls: list[str] = []
done: list[Any] = []
ticks: list[str] = []


def fails_twice() -> str:
    calls.append("call")
    if len(calls) < 3:
        raise RuntimeError("not yet")
    return "done"


bots = Handlers()
scheduled = Handlers()
scheduled.cron("tick", "0 * * * *", kind="tick")


@bots.on("sleep")
async def sleep(_: Event, ctx: Context) -> None:
    await ctx.sleep("30d")
    done.append("awake")


@bots.on("wait")
async def wait(_: Event, ctx: Context) -> None:
    done.append(
        await asyncio.gather(
            ctx.wait_for("paid", timeout="7d", default="never"),
            ctx.wait_for("signed", timeout="1d", default="never"),
        )
    )


@bots.on("try")
async def tries(event: Event, ctx: Context) -> None:
    done.append(await ctx.step("call", fails_twice, retries=2, backoff=event.payload.get("backoff")))


@bots.on("again", max_attempts=5, backoff="1h")
async def again(_: Event, ctx: Context) -> None:  # noqa: ARG001 - a handler takes both arguments
    done.append(fails_twice())


@scheduled.on("tick")
async def tick(_: Event, ctx: Context) -> None:
    await ctx.sleep("10m")
    ticks.append("tick")


@bots.on("watch")
async def watch(event: Event, ctx: Context) -> Any:
    await ctx.sleep("1d")
    done.append(event.payload["day"])
    return ctx.continue_as_new({"day": event.payload["day"] + 1})


@bots.on("parent")
async def parent(_: Event, ctx: Context) -> None:
    try:
        done.append(await asyncio.gather(*(ctx.run("child", {"pause": each}) for each in ("1h", "2h"))))
        await ctx.run("child", {"fails": "no such thing"})
    except ChildError as error:
        done.append([error.outcome, error.message])


@bots.on("child")
async def child(event: Event, ctx: Context) -> str:
    if "fails" in event.payload:
        raise LookupError(event.payload["fails"])
    await ctx.sleep(event.payload["pause"])
    return str(event.payload["pause"])


@bots.on("pay")
async def pay(event: Event, ctx: Context) -> None:
    async def book(connection: Any) -> int:
        return int(await connection.fetchval("insert into charge default values returning 17"))

    async with asyncpg.create_pool(event.payload["database"], min_size=0, max_size=1) as pool:
        done.append(await ctx.transaction("book", pool, book))


@pytest.fixture
def handlers(request: pytest.FixtureRequest) -> Handlers:
    for noted in (calls, done, ticks):
        noted.clear()
    return scheduled if "schedules" in request.node.name else bots  # without schedules, days pass sooner


async def test_a_sleep_of_a_month_although_the_worker_is_killed_as_it_begins(bot: Bot) -> None:
    with bot.killed_at("wait sleep"):
        await bot.queue.enqueue("sleep")
        await bot.idle()
    await bot.advance("29d")
    assert done == []
    await bot.advance("1d")
    assert done == ["awake"]
    assert {event.state for event in bot.events} == {"completed"}


async def test_waits_end_at_timeouts_or_with_a_value_and_children_take_their_time_and_fail(bot: Bot) -> None:
    await bot.queue.enqueue("wait", item_key="order")
    await bot.advance("2d")
    await bot.queue.signal("order", "paid", 10)
    await bot.idle()
    assert done == [[10, "never"]]
    await bot.queue.enqueue("wait")
    await bot.advance("8d")
    assert done[1:] == [["never", "never"]]
    await bot.queue.enqueue("parent")
    await bot.advance("2h")
    assert done[2:] == [["1h", "2h"]]
    await bot.advance("1h")
    assert done[-1] == ["failed", "no such thing"]


async def test_tries_of_a_step_follow_after_its_pauses_and_attempts_after_the_handlers(bot: Bot) -> None:
    await bot.queue.enqueue("try")
    await bot.idle()
    assert done == ["done"]
    calls.clear()
    await bot.queue.enqueue("try", {"backoff": "10m"})
    await bot.idle()
    await bot.advance("5m")
    assert len(calls) == 1
    await bot.advance("10m")  # pauses differ by a fifth
    assert len(calls) == 2
    await bot.advance("20m")
    assert len(calls) == 2
    await bot.advance("30m")
    assert done == ["done", "done"]
    for noted in (calls, done):
        noted.clear()
    await bot.queue.enqueue("again")
    await bot.idle()
    assert (len(calls), done) == (1, [])
    await bot.advance("1d")
    assert (len(calls), done) == (3, ["done"])


async def test_schedules_fire_unless_a_test_says_otherwise_and_their_handlers_sleep(bot: Bot) -> None:
    await bot.advance("5h", schedules=False)
    assert ticks == []
    await bot.advance("70m")
    assert ticks == ["tick"]
    await bot.advance("5h")
    assert 5 <= len(ticks) <= 6


async def test_schedules_that_are_paused_stay_so(bot: Bot) -> None:
    async with connected(bot.database_url) as owner:
        await owner.execute("select agent.pause_cron('tick', true, null)")
    await bot.advance("5h", schedules=False)
    await bot.advance("5h")
    assert ticks == []


async def test_an_endless_handler_lives_for_a_week(bot: Bot) -> None:
    await bot.queue.enqueue("watch", {"day": 1})
    await bot.advance("169h")  # each day begins a little later than the last one ended
    assert done == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("point", ["in step book", "step book"])
async def test_a_step_in_a_transaction_is_done_once_despite_a_kill(bot: Bot, point: str) -> None:
    async with connected(bot.database_url) as owner:
        await owner.execute("create table charge (at timestamptz default now())")
        with bot.killed_at(point):
            await bot.queue.enqueue("pay", {"database": bot.database_url})
            await bot.idle()
        assert await owner.fetchval("select count(*) from charge") == 1
    assert set(done) == {17}
