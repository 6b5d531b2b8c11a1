"""One worker: groups, outcomes that cannot be settled, timeouts, answers, successors, and replies after deaths."""

import asyncio
import uuid
from collections.abc import Callable
from contextvars import Context as Variables
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, NoReturn

import pytest
import structlog

from surelane.testing import fleet, virtual
from surelane_worker import (
    Await,
    Context,
    Continuation,
    Discard,
    Event,
    FanOut,
    Handlers,
    Job,
    Retry,
    Snooze,
)


@virtual
async def test_a_group_of_several_kinds_runs_in_order_and_within_each_handlers_bound() -> None:
    """Some groups begin with the handler whose only slot is taken, and some events have no group."""
    handlers, ran, running, most = Handlers(), list[tuple[str | None, int]](), set[int](), 0

    @handlers.on("step")
    async def step(event: Event, _: Context) -> None:
        ran.append((event.group_key, event.id))
        await asyncio.sleep(0.005)

    @handlers.on("one-at-a-time", concurrency=1)
    async def one(event: Event, ctx: Context) -> None:
        nonlocal most
        running.add(event.id)
        most = max(most, len(running))
        await step(event, ctx)
        running.remove(event.id)

    @handlers.on_group("together")
    async def together(events: list[Event], ctx: Context) -> None:
        for event in events:
            await step(event, ctx)

    kinds = ("step", "one-at-a-time", "step", "one-at-a-time", "together", "step")
    async with fleet(handlers, workers=0) as f:
        groups = [
            [await f.enqueue(kind, group_key=f"T:C:{number}") for kind in kinds[1 - number % 2 :]]
            for number in range(4)
        ]
        alone = [await f.enqueue("one-at-a-time") for _ in range(4)]
        f.start()
        for event in [*alone, *(event for group in groups for event in group)]:
            await event.result()
            assert (await event.row())["attempts"] == 1
        for number, group in enumerate(groups):
            assert [event for key, event in ran if key == f"T:C:{number}"] == [event.id for event in group]
        assert most == 1


class UnprintableError(Exception):
    """An error that cannot be turned into text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Treacherous(dict[str, str]):
    """A value that raises an unusual error when it is serialised."""

    def items(self) -> NoReturn:
        raise KeyError("treacherous")


def unprintable() -> NoReturn:
    raise UnprintableError


def interrupt() -> NoReturn:
    raise KeyboardInterrupt


THEN, ATTEMPTS, WRONG = Continuation("nothing"), "attempts_exhausted", "a\ufffdb\ufffd"
LAST = datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))
UNNAMED = "(UnprintableError without text)"
Outcome = Callable[[], object]
REFUSED: dict[str, tuple[Outcome, str, str]] = {
    "payload": (lambda: FanOut([Job("nothing", uuid.uuid4())], THEN), ATTEMPTS, "UUID is not JSON"),
    "naive run_at": (
        lambda: FanOut([Job("nothing", run_at=datetime(2030, 1, 1))], THEN),  # noqa: DTZ001
        ATTEMPTS,
        "has no time zone",
    ),
    "no job": (lambda: FanOut(["nothing"], THEN), ATTEMPTS, "takes jobs, not str"),  # type: ignore[list-item]
    "no continuation": (lambda: FanOut([], None), ATTEMPTS, "takes jobs, not NoneType"),  # type: ignore[arg-type]
    "fan-out result": (lambda: FanOut([], THEN, result=object()), "result_refused", "is not JSON"),
    "refused by the database": (
        lambda: FanOut([Job("nothing", max_attempts=-1)], THEN),
        "continuation_refused",
        "max_attempts",
    ),
    "not a number": (lambda: FanOut([Job("nothing", float("nan"))], THEN), ATTEMPTS, "not JSON compliant"),
    "retry": (lambda: Retry(timedelta.max), ATTEMPTS, "longer than 3650 days"),
    "snooze": (lambda: Snooze(timedelta(days=10**8)), ATTEMPTS, "longer than 3650 days"),
    "naive await": (lambda: Await(datetime(2030, 1, 1)), ATTEMPTS, "has no time zone"),  # noqa: DTZ001
    "await nothing": (lambda: Await(None), ATTEMPTS, "datetime is needed"),  # type: ignore[arg-type]
    "await the end of time": (lambda: Await(LAST), ATTEMPTS, "out of range"),
    "discard": (lambda: Discard(ValueError("a\0b\ud800")), WRONG, WRONG),  # type: ignore[arg-type]
    "unprintable discard": (lambda: Discard(UnprintableError()), UNNAMED, "without text"),  # type: ignore[arg-type]
    "unprintable": (unprintable, ATTEMPTS, "without text"),
    "interrupt": (interrupt, ATTEMPTS, ""),
    "treacherous": (lambda: Treacherous(a="b"), ATTEMPTS, "treacherous"),
}


@virtual
async def test_an_outcome_that_cannot_be_settled_fails_its_attempt_and_nothing_else() -> None:
    handlers = Handlers()

    @handlers.on("bad", backoff="50ms")
    async def bad(event: Event, _: Context) -> object:
        return REFUSED[event.payload["name"]][0]()

    @handlers.on("innocent")
    async def innocent(_: Event, __: Context) -> None:
        await asyncio.sleep(2)

    async with fleet(handlers, settings={"SURELANE_CONCURRENCY": "50"}) as f:
        with structlog.testing.capture_logs() as logs:
            other = await f.enqueue("innocent", max_attempts=1)
            events = {name: await f.enqueue("bad", {"name": name}) for name in REFUSED}
            for name, (_, reason, message) in REFUSED.items():
                row = await f.until(events[name].ended)
                assert (row["outcome"], row["reason"]) == ("failed", reason), name
                assert len(row["errors"]) == (3 if reason == ATTEMPTS else 1), name
                assert message in row["errors"][-1]["message"], name
            await other.result()
        assert not any("crashed" in each["event"] for each in logs)


@virtual
async def test_handlers_have_the_workers_timeout_if_they_name_none() -> None:
    handlers = Handlers()

    @handlers.on("unhurried")
    async def unhurried(_: Event, __: Context) -> None:
        await asyncio.sleep(600)

    async with fleet(handlers, settings={"SURELANE_HANDLER_TIMEOUT": "3s"}) as f:
        event = await f.enqueue("unhurried", max_attempts=1)
        assert await event.errors() == ["HandlerTimeoutError: the handler took longer than 3 s"]


@virtual
async def test_an_event_waits_for_its_answer_without_a_worker() -> None:
    handlers = Handlers()

    @handlers.on("dispatch-execute")
    async def dispatch(_: Event, __: Context) -> Await:
        return Await(datetime(2100, 1, 1, tzinfo=UTC))

    async with fleet(handlers) as f:
        event = await f.enqueue("dispatch-execute")
        await f.sleep(2)
        assert not f.workers[0].runs(event)
        assert await f.queue.answer_event(event.id, '{"from": "elsewhere"}') == "done"
        assert await event.result() == {"from": "elsewhere"}


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


@pytest.mark.parametrize("point", ["end", "in step between"])
@virtual
async def test_a_worker_that_tries_again_after_a_death_says_only_what_is_missing(point: str) -> None:
    handlers, said = Handlers(), ["first", "second"]

    @handlers.on("slack.app_mention")
    async def mentioned(event: Event, ctx: Context) -> None:
        await ctx.slack.reply(event, said[0])
        await ctx.step("between", asyncio.sleep, 0)
        await ctx.slack.reply(event, said[1])

    async with fleet(handlers) as f:
        with f.killed_at(point):
            event = await f.mention("hello")
            await event.result()
        assert f.replies(event) == said
        assert len((await event.row())["claimed"]) == 2
        assert [method for method, _ in f.slack.calls if method.startswith("conversations.")] == []


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
