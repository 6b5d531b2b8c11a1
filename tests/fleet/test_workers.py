"""Successors after deaths, and replies that are seen once, also those that arrive after their worker's death."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context as Variables
from typing import Any

import pytest
import structlog

from surelane.testing import fleet, virtual
from surelane_dev.testing.fleets.wire import Wire
from surelane_worker import Context, Event, Handlers
from tests.fleet.statements import statements


@virtual
async def test_an_endless_event_goes_on_once_after_its_workers_died(monkeypatch: pytest.MonkeyPatch) -> None:
    """No number is skipped or comes twice."""
    monkeypatch.setattr("surelane_worker.running.runner.ANEW_OFTEN", 15)
    handlers, reached = Handlers(), list[int]()

    @handlers.on("endless")
    async def endless(event: Event, ctx: Context) -> Any:
        left: int = event.payload["left"]
        assert await ctx.step("left", lambda: left) == left, "a successor has no steps"
        if left in (35, 30) and ctx.attempt == 1 and left not in reached:
            reached.append(left)
            await f.die()
        return ctx.continue_as_new({"left": left - 1}) if left else left

    async with fleet(handlers, settings={"SURELANE_SESSION_GRACE": "100ms"}) as f:
        with structlog.testing.capture_logs() as logs:
            await f.enqueue("endless", {"left": 40}, item_key="chain", group_key="chain")
            query = "select (event ->> 'left')::int as left, item_key from agent.event_hist order by id"
            await f.until(lambda: f.sql(f"select from ({query}) as h having count(*) = 41"))
        rows = await f.sql(query)
        assert [(row["left"], row["item_key"]) for row in rows] == [(n, "chain") for n in range(40, -1, -1)]
        assert await f.sql("select from agent.event") == []
        assert reached == [35, 30]
        assert any("continues as a new one again and again" in each["event"] for each in logs)


@virtual
async def test_a_worker_that_stood_still_while_another_took_over_says_nothing_more() -> None:
    handlers = Handlers()

    @handlers.on("slack.app_mention")
    async def mentioned(event: Event, ctx: Context) -> None:
        await ctx.slack.reply(event, "first")
        await asyncio.sleep(3)
        await ctx.slack.reply(event, f"second, by attempt {ctx.attempt}")

    async with fleet(handlers, settings={"SURELANE_LEASE": "9s"}) as f:
        event = await f.mention("hello")
        await f.until(lambda: f.replies(event))
        with structlog.testing.capture_logs() as logs:
            f.freeze(f.workers[0], "30s")
            f.start()
            await event.result()
            await f.sleep("40s")
        assert any("lease lost" in each["event"] for each in logs)
        assert f.replies(event) == ["first", "second, by attempt 2"]


@pytest.mark.parametrize("dies", [False, True])
@virtual
async def test_a_reply_whose_answer_is_lost_is_looked_for_before_it_is_sent_again(
    dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers, lost = Handlers(), list[str]()

    @handlers.on("slack.app_mention")
    async def mentioned(event: Event, ctx: Context) -> None:
        await ctx.slack.reply(event, "only")

    async with fleet(handlers, settings={"SURELANE_SESSION_GRACE": "100ms"}) as f:
        take = f.slack.take

        def lose(host: Any, method: str, given: dict[str, Any]) -> dict[str, Any]:
            answer = take(host, method, given)
            if method == "chat.postMessage" and not lost:
                lost.append(method)
                if not dies:
                    raise TimeoutError
                dying = asyncio.create_task(f.kill(f.workers[0]), context=Variables())
                dying.add_done_callback(lambda _: f.start())
            return answer

        monkeypatch.setattr(f.slack, "take", lose)
        event = await f.mention("hello")
        await event.result()
        assert f.replies(event) == ["only"]
        assert lost


SOON = {"SURELANE_SESSION_GRACE": "100ms", "SURELANE_SWEEP_INTERVAL": "1s"}
Said = Callable[[Event, Context], Awaitable[Any]]


async def reply(event: Event, ctx: Context) -> None:
    await ctx.slack.reply(event, "w0 w1 w2 ", channel="C1")


async def stream(event: Event, ctx: Context) -> None:
    where = {"channel": "C1", "thread_ts": "1.0", "recipient_user_id": "U1"}
    async with ctx.slack.stream(event, interval=0, **where) as stream:
        for word in ("w0 ", "w1 ", "w2 "):
            await stream.append(word)
            await asyncio.sleep(0.2)


async def in_a_step(event: Event, ctx: Context) -> None:
    await ctx.step("say", reply, event, ctx)


@pytest.mark.parametrize("say", [reply, stream, in_a_step], ids=lambda each: each.__name__)
@pytest.mark.parametrize("late", [0.1, 0.8, 3.0])
@virtual
async def test_a_message_that_arrives_after_its_workers_death_is_there_once(say: Said, late: float) -> None:
    handlers, noted = Handlers(), list[str]()

    @handlers.on("say", backoff="1ms")
    async def handle(event: Event, ctx: Context) -> None:
        await say(event, ctx)

    async def hold_up(_: Wire, query: str, __: Any) -> None:
        if "note_event" in query and not noted:
            noted.append(query)
            f.net.delay = lambda: late  # type: ignore[method-assign]

    async with fleet(handlers, settings=SOON) as f:
        usual = f.net.delay
        with statements(after=hold_up):
            event = await f.enqueue("say")
            await f.until(lambda: noted)
            await f.sleep(late / 2)
            f.net.delay = usual  # type: ignore[method-assign]
            await f.kill()
            f.start()
            await event.result()
        await f.sleep("10s")
        assert [message["text"] for message in f.slack.messages] == ["w0 w1 w2 "]
