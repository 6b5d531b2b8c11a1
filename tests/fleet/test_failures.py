"""Durable handlers: failures that were caught, several waits at once, attempts and names."""

import asyncio
from typing import Any

from surelane.testing import fleet, virtual
from surelane_operator.reads.events import Reads
from surelane_operator.reads.timeline import story_of
from surelane_worker import Context, Event, Handlers
from surelane_worker.errors import StepError


class PaymentError(Exception):
    """The card was declined."""


def buying(log: list[str]) -> Handlers:  # noqa: C901 - one after another
    """Return handlers that pay. The first charge fails, and they go on past it as the payload says."""
    handlers = Handlers()

    async def pay() -> str:
        log.append("charged")
        if log.count("charged") == 1:
            raise PaymentError("card declined")
        return "receipt"

    @handlers.on("buy", backoff="1s")
    async def buy(event: Event, ctx: Context) -> Any:
        try:
            await ctx.step("pay", pay)
        except StepError as error:
            told = {
                "type": error.type,
                "message": error.message,
                "where": error.where is not None and "test_failures.py" in error.where,
                "cause": type(error.__cause__).__name__,
                "text": str(error),
            }
            log.append("caught")
            match event.payload["how"]:
                case "wait":
                    told["answer"] = await ctx.wait_for("answer")
                case "crash":
                    await ctx.step("compensate", log.append, "compensated")
                case "fail":
                    raise
            return told
        return "Bought."

    @handlers.on("buy-two")
    async def buy_two(_: Event, ctx: Context) -> Any:
        async def other() -> str:
            log.append("other")
            return "other"

        tries = ctx.step("pay", pay), ctx.step("other", other), ctx.wait_for("answer")
        done = await asyncio.gather(*tries, return_exceptions=True)
        return [each.type if isinstance(each, StepError) else each for each in done]

    @handlers.on("buy-beside", backoff="1s")
    async def buy_beside(_: Event, ctx: Context) -> Any:
        async def others() -> None:
            for number in range(100):
                await ctx.step(f"other {number}", lambda: None)

        async with asyncio.TaskGroup() as group:
            group.create_task(others())
            await ctx.step("before", lambda: None)
            return await ctx.step("pay", pay)

    return handlers


# --- Failures that the handler caught


@virtual
async def test_failure_past_which_a_handler_went_on_is_raised_again_and_not_tried_again() -> None:
    log: list[str] = []
    async with fleet(buying(log)) as f:
        event = await f.enqueue("buy", {"how": "wait"})
        await f.until(event.suspended)
        await f.signal(event, "answer", "Give up")
        told = {"type": "PaymentError", "message": "card declined", "where": True, "cause": "NoneType"}
        text = "step pay failed: PaymentError: card declined"
        assert await event.result() == {**told, "text": text, "answer": "Give up"}
        assert log == ["charged", "caught", "caught"]
        log.clear()
        first_run = await (await f.enqueue("buy", {"how": "end"})).result()
        assert (first_run["type"], first_run["cause"], first_run["text"]) == (
            "PaymentError",
            "PaymentError",
            text,
        )
        job = await Reads(f.connection).get(event.id)
        assert job is not None
        assert [step["failed"] for step in job["steps"] if step["name"] == "pay"] == [True]
        story = [(step.what, (step.detail or "").split(":")[0]) for step in story_of(job)]
        assert ("step failed for good", "pay") in story

        # A new run keeps the failure before the step that it begins with.
        rerun = await f.rerun(event, "answer")
        await f.signal(rerun, "answer", "Stop")
        assert (await rerun.result())["answer"] == "Stop"
        assert log.count("charged") == 1
        assert await (await f.rerun(event, "pay")).result() == "Bought."
        assert log.count("charged") == 2


@virtual
async def test_failure_that_was_compensated_is_final_although_the_worker_is_killed() -> None:
    log: list[str] = []
    async with fleet(buying(log)) as f:
        with f.killed_at("step compensate"):
            assert (await (await f.enqueue("buy", {"how": "crash"})).result())["cause"] == "NoneType"
        assert (log.count("charged"), log.count("compensated"), log.count("caught")) == (1, 1, 2)


@virtual
async def test_failure_that_ends_the_attempt_is_tried_again() -> None:
    log: list[str] = []
    async with fleet(buying(log)) as f:
        event = await f.enqueue("buy", {"how": "fail"})
        assert await event.result() == "Bought."
        assert await event.errors() == ["PaymentError: card declined"]
        assert log == ["charged", "caught", "charged"]
        log.clear()
        assert await (await f.enqueue("buy-beside")).result() == "receipt"
        assert log.count("charged") == 2


@virtual
async def test_failure_beside_other_steps_is_a_result_in_each_run() -> None:
    log: list[str] = []
    async with fleet(buying(log)) as f:
        event = await f.enqueue("buy-two")
        await f.until(event.suspended)
        await f.signal(event, "answer", 1)
        assert await event.result() == ["PaymentError", "other", 1]
        assert sorted(log) == ["charged", "other"]


@virtual
async def test_failed_step_of_the_release_before_is_tried_again() -> None:
    async with fleet(buying(["charged"])) as f:
        event = await f.enqueue("buy", {"how": "wait"}, run_in="10s")
        error = '[{"type": "PaymentError", "message": "card declined", "at": "2026-01-01", "attempt": 1}]'
        await f.sql(
            "insert into agent.step (event_id, name, nth, sort, event_ts, errors, attempt, started_at)"
            " values ($1, 'pay', 1, 'step', agent.clock(), $2, 1, agent.clock())",
            event.id,
            error,
        )
        await f.sql("update agent.event set claimed = array[agent.clock()] where id = $1", event.id)
        assert await event.result() == "Bought."


# --- Several waits at once


@virtual
async def test_several_waits_at_once_need_all_answers_in_any_order() -> None:  # noqa: C901 - one story
    handlers, deployed = Handlers(), list[int]()

    @handlers.on("both")
    async def both(event: Event, ctx: Context) -> Any:
        async def all_of(*waits: Any) -> Any:
            match event.payload["how"]:
                case "exceptions":
                    return await asyncio.gather(*waits, return_exceptions=True)
                case "group":
                    async with asyncio.TaskGroup() as group:
                        tasks = [group.create_task(wait) for wait in waits]
                case "wait":
                    tasks = [asyncio.create_task(wait) for wait in waits]
                    await asyncio.wait(tasks)
                case _:
                    return await asyncio.gather(*waits)
            return [task.result() for task in tasks]

        got = await all_of(ctx.wait_for("a"), ctx.wait_for("b"))
        deployed.append(event.id)
        return got

    async with fleet(handlers) as f:
        for how in ("gather", "exceptions", "group", "wait"):
            for order in ("ab", "ba"):
                event = await f.enqueue("both", {"how": how})
                for name in order:
                    await f.until(event.suspended)
                    ((detail,),) = await f.sql("select detail from agent.why_waiting($1)", event.id)
                    assert all(f"waits for {each}" in detail for each in order[order.index(name) :])
                    assert event.id not in deployed
                    await f.signal(event, name, name.upper())
                    if name == order[0]:
                        taken = "select taken_by from agent.signal where event_id = $1 and name = $2"
                        while (await f.sql(taken, event.id, name))[0][0] is None:
                            await f.sleep(0.1)
                assert await event.result() == ["A", "B"]
                assert deployed.count(event.id) == 1


@virtual
async def test_nothing_of_a_suspended_handler_goes_on() -> None:
    handlers, log = Handlers(), list[str]()

    @handlers.on("catch-all")
    async def catch_all(event: Event, ctx: Context) -> Any:
        replies, queue = ctx.slack, ctx.queue
        try:
            await ctx.wait_for("answer")
        except BaseException:  # noqa: BLE001 - what it is about
            for what in (
                lambda: ctx.step("deploy", log.append, "deployed"),
                lambda: ctx.slack.reply(event, "deployed"),
                lambda: replies.reply(event, "deployed", channel="C1"),
                lambda: ctx.queue.enqueue("quick"),
                lambda: ctx.sleep("1ms"),
                lambda: ctx.wait_for("other"),
            ):
                try:
                    await what()
                    log.append("went on")
                except Exception as error:  # noqa: BLE001 - it must not look like an error of the call
                    log.append(f"error {type(error).__name__}")
                except BaseException:  # noqa: BLE001 - what it is about
                    pass
            assert queue is not None
            return "swallowed"
        log.append("answered")
        return event.claim

    async with fleet(handlers) as f:
        event = await f.enqueue("catch-all")
        await f.until(event.suspended)
        await f.sleep(2)
        assert log == []
        await f.signal(event, "answer", 1)
        assert await event.result() == 2
        assert log == ["answered"]
        assert await f.sql("select from agent.job where kind = 'quick'") == []
        assert f.slack.messages == []


@virtual
async def test_first_of_several_is_the_same_in_each_run() -> None:
    handlers, winners = Handlers(), list[list[str]]()

    @handlers.on("first")
    async def first(_: Event, ctx: Context) -> Any:
        waits = {name: asyncio.create_task(ctx.wait_for(name)) for name in ("a", "b")}
        await asyncio.wait(waits.values(), return_when=asyncio.FIRST_COMPLETED)
        winners.append([name for name, task in waits.items() if task.done()])
        await ctx.step("use", lambda: winners[-1])
        return winners[-1]

    async with fleet(handlers, workers=0) as f:
        event = await f.enqueue("first")
        for name in ("b", "a"):
            await f.signal(event, name, name)
        f.start()
        with f.killed_at("step use"):
            assert len(await event.result()) == 1
        assert len(winners) == 2
        assert winners[0] == winners[1]


@virtual
async def test_escalation_stays_one_although_the_answer_came_meanwhile() -> None:
    handlers, log = Handlers(), list[str]()

    @handlers.on("escalate")
    async def escalate(_: Event, ctx: Context) -> Any:
        waiting = asyncio.create_task(ctx.wait_for("answer"))
        pause = asyncio.create_task(ctx.sleep("1m"))
        await asyncio.wait({waiting, pause}, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            return ["answered", waiting.result()]
        await ctx.step("escalate", log.append, "escalated")
        if log.count("dies") == 0:
            log.append("dies")
            await f.die()
        return ["escalated", await waiting]

    async with fleet(handlers) as f:
        event = await f.enqueue("escalate")
        await f.until(lambda: "dies" in log)
        await f.signal(event, "answer", "late")
        assert await event.result() == ["escalated", "late"]
        assert log == ["escalated", "dies"]


# --- Attempts


@virtual
async def test_attempt_that_stored_a_step_does_not_count() -> None:
    handlers, log = Handlers(), list[str]()

    @handlers.on("slow-progress")
    async def slow_progress(event: Event, ctx: Context) -> Any:
        for number in range(4):
            if number == event.payload.get("poison"):
                log.append("poisoned")
                await f.die()
            await ctx.step("work", lambda number: number, number)
            if f"after {event.id} {number}" not in log:
                log.append(f"after {event.id} {number}")
                await f.die()
        return "all"

    async with fleet(handlers) as f:
        assert await (await f.enqueue("slow-progress", max_attempts=3)).result() == "all"
        # The attempt that stored the second step counts as the first.
        event = await f.enqueue("slow-progress", {"poison": 2}, max_attempts=3)
        row = await f.until(event.ended)
        assert (row["outcome"], row["reason"]) == ("expired", "attempts_exhausted")
        assert log.count("poisoned") == 2


@virtual
async def test_handler_has_attempts_and_pauses_of_its_own_from_the_first_claim_on() -> None:
    handlers, at = Handlers(), list[float]()

    @handlers.on("fails-often", max_attempts=5, backoff="1ms")
    async def fails_often(_: Event, ctx: Context) -> None:
        at.append(f.now)
        raise RuntimeError(f"attempt {ctx.attempt}")

    @handlers.on("fails-once", max_attempts=1)
    async def fails_once(_: Event, __: Context) -> None:
        raise LookupError

    async with fleet(handlers, workers=0) as f:
        some = [await f.enqueue("fails-once") for _ in range(20)]
        # No worker has announced the maximum yet, and this one's announcement comes late.
        locking = await f.database.lend("surelane")
        await f.database.run(locking, "execute", "begin; lock table agent.worker in exclusive mode")
        f.start()
        rows = [await f.until(each.ended, "20s") for each in some]
        assert await f.sql("select from agent.worker where max_attempts is not null") == []
        f.database.end(locking)
        assert {(row["outcome"], len(row["errors"])) for row in rows} == {("failed", 1)}
        event = await f.enqueue("fails-often")
        assert await event.errors() == [f"RuntimeError: attempt {number}" for number in range(1, 6)]
        assert at[-1] - at[0] < 2


@virtual
async def test_pause_between_tries_of_a_step_holds_no_slot_and_costs_no_attempt() -> None:
    handlers, called = Handlers(), list[float]()

    @handlers.on("retrying")
    async def retrying(_: Event, ctx: Context) -> Any:
        async def call() -> int:
            called.append(f.now)
            if len(called) < 3:
                raise RuntimeError("not yet")
            return len(called)

        return [await ctx.step("call", call, retries=2, backoff="1m"), ctx.attempt]

    async with fleet(handlers) as f:
        event = await f.enqueue("retrying")
        for tries in (1, 2):
            while len(called) < tries:
                await f.sleep("1s")
            await f.until(event.suspended)
            row = await event.row()
            assert (row["claimed_by"], row["attempts"]) == (None, 0)
            ((detail,),) = await f.sql("select detail from agent.why_waiting($1)", event.id)
            assert detail.startswith("tries step call again until ")
        assert await event.result() == [3, 1]
        assert called[1] - called[0] > 40  # the pause is jittered


# --- Names


@virtual
async def test_steps_of_one_name_at_once_need_keys() -> None:
    handlers, fetched = Handlers(), list[str]()

    @handlers.on("side-by-side", backoff="1s")
    async def side_by_side(event: Event, ctx: Context) -> Any:
        async def fetch(item: str, pause: float) -> str:
            fetched.append(item)
            await asyncio.sleep(pause)
            return f"result of {item}"

        async def one(item: str, pause: float) -> str:
            # The later attempt comes to the steps in another order.
            await asyncio.sleep(pause if event.claim == 1 else 2 - pause)
            key = item if event.payload["keys"] else None
            return str(await ctx.step("fetch", lambda: fetch(item, pause), key=key))

        items = {"a": 2.0, "b": 1.0, "c": 0.0}
        results = await asyncio.gather(*(one(item, pause) for item, pause in items.items()))
        if event.claim == 1:
            raise RuntimeError("once more")
        return dict(zip(items, results, strict=True))

    async with fleet(handlers) as f:
        event = await f.enqueue("side-by-side", {"keys": True})
        assert await event.result() == {each: f"result of {each}" for each in "abc"}
        assert sorted(fetched) == ["a", "b", "c"]
        assert sorted(step["name"] for step in await event.steps()) == ["fetch [a]", "fetch [b]", "fetch [c]"]
        event = await f.enqueue("side-by-side", {"keys": False}, max_attempts=1)
        (error,) = await event.errors()
        assert error.startswith("StepsAtOnceError: two tasks run a step 'fetch' at once")
