"""Durable handlers: stored steps are not run again, and suspended events wait without a worker."""

import asyncio
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import structlog

from surelane.testing import fleet, virtual
from surelane_operator.reads.events import Reads
from surelane_operator.reads.filters import Filter
from surelane_operator.reads.timeline import story_of
from surelane_worker import Context, Event, Handlers


def steps(ran: list[str]) -> Handlers:
    """Return a handler that runs steps as the payload says, and fails afterwards until the last of its runs."""
    handlers = Handlers()

    @handlers.on("steps", backoff="1s")
    async def run(event: Event, ctx: Context) -> list[str]:
        def call(name: str) -> str:
            ran.append(name)
            return name

        runs = event.payload["runs"]
        nth = min(event.claim, len(runs))
        done = [await ctx.step(name, call, argument) for name, argument in runs[nth - 1]]
        if nth < len(runs):
            raise RuntimeError("once more")
        return done

    return handlers


@virtual
async def test_steps_count_up_are_not_run_again_and_are_told() -> None:
    ran: list[str] = []
    async with fleet(steps(ran)) as f:
        calls = [["a", "1"], ["b", "2"], ["b", "3"]]
        event = await f.enqueue("steps", {"runs": [calls[:2], calls]})
        assert await event.result() == ["1", "2", "3"]
        assert ran == ["1", "2", "3"]
        job = await Reads(f.connection).get(event.id)
        assert job is not None
        story = [(told.what, (told.detail or "").split(":")[0]) for told in story_of(job)]
        assert [told for told in story if told[0] == "step"] == [
            ("step", "a"),
            ("step", "b"),
            ("step", "b (2)"),
        ]
        other = await f.enqueue("steps", {"runs": [[["a", "1"]], [["a", "2"]]]}, max_attempts=2)
        assert "StepMismatchError: step a was stored for other arguments" in (await other.errors())[-1]
        with structlog.testing.capture_logs() as logs:
            shorter = await f.enqueue("steps", {"runs": [[["a", "1"], ["b", "1"]], [["a", "1"]]]})
            assert await shorter.result() == ["1"]
        assert any("stored steps were not used" in each["event"] and "b" in str(each) for each in logs)


@virtual
async def test_results_go_through_json_at_once_and_others_fail_the_step() -> None:
    values = {"object": object(), "nan": float("nan"), "large": "x" * 16_000_000, "tuple": (1, "a\0b")}
    handlers = Handlers()

    made = list[object]()

    @handlers.on("result", backoff="1ms")
    async def result(event: Event, ctx: Context) -> Any:
        def make() -> object:
            made.append(values[event.payload["value"]])
            return made[-1]

        return await ctx.step("make", make)

    async with fleet(handlers) as f:
        event = await f.enqueue("result", {"value": "tuple"})
        assert await event.result() == [1, "a\ufffdb"]
        for value, why in (
            ("object", "is not JSON"),
            ("nan", "is not JSON"),
            ("large", "has 16,000,002 bytes"),
        ):
            made.clear()
            event = await f.enqueue("result", {"value": value}, max_attempts=2)
            first, last = await event.errors()
            assert first.startswith("StepResultError: ")
            assert last.startswith("StepError: ")
            assert why in first
            assert why in last
            assert len(made) == 1, "its function did its work once"


@virtual
async def test_steps_that_fail_or_stand_where_none_may() -> None:
    handlers, called = Handlers(), list[str]()

    @handlers.on("flaky")
    async def flaky(_: Event, ctx: Context) -> Any:
        async def fail_first() -> str:
            await asyncio.sleep(2)
            called.append("called")
            if len(called) == 1:
                raise RuntimeError("not yet")
            return "done"

        return await ctx.step("flaky", fail_first, retries=1)

    @handlers.on("renamed")
    async def renamed(event: Event, ctx: Context) -> None:
        if event.claim == 1:
            await ctx.step("name", lambda: 1)
            raise RuntimeError("once more")
        await ctx.sleep("1s", name="name")

    @handlers.on_group("together")
    async def together(events: list[Event], ctx: Context) -> None:
        await ctx.step("one", len, [event.id for event in events])

    @handlers.on("nested")
    async def nested(_: Event, ctx: Context) -> None:
        async def outer() -> None:
            await ctx.sleep("1s")

        await ctx.step("outer", outer)

    async with fleet(handlers) as f:
        event = await f.enqueue("flaky")
        assert await event.result() == "done"
        (step,) = await event.steps()
        assert [error["message"] for error in step["errors"]] == ["not yet"]
        assert (step["name"], step["attempt"]) == ("flaky", 1)
        began, ended = [datetime.fromisoformat(step[when]) for when in ("started_at", "finished_at")]
        assert timedelta(seconds=2) <= ended - began < timedelta(seconds=2.1)
        for kind, attempts, why in (
            ("renamed", 2, "name was stored as a step and is now used as a sleep: give the sleep a new name"),
            ("together", 1, "register this handler with on"),
            ("nested", 1, "step 'outer' contains another step or wait"),
        ):
            error = (await (await f.enqueue(kind, max_attempts=attempts)).errors())[-1]
            assert error.startswith("StepMismatchError: ")
            assert why in error


@virtual
async def test_results_come_again_in_the_order_in_which_they_were_stored() -> None:
    handlers, ends = Handlers(), list("hgfedcba")

    @handlers.on("overtaking")
    async def overtaking(_: Event, ctx: Context) -> list[str]:
        came, passed = list[str](), {name: asyncio.Event() for name in ends}

        async def run(name: str, before: str | None) -> None:
            await ctx.step(name, passed[before].wait if before else lambda: True)
            came.append(name)
            passed[name].set()

        await asyncio.gather(*(run(*each) for each in sorted(zip(ends, [None, *ends], strict=False))))
        await ctx.sleep("50ms")
        return came

    async with fleet(handlers) as f:
        assert await (await f.enqueue("overtaking")).result() == ends


# --- Tags and progress


@virtual
async def test_tags_and_the_last_progress_are_kept_with_the_event() -> None:
    handlers = Handlers()

    @handlers.on("tagged", backoff="1s")
    async def tagged(event: Event, ctx: Context) -> None:
        await ctx.tag(**event.payload)
        if event.attempts == 1:
            raise RuntimeError("once more")
        await ctx.tag(attempt=event.attempts, gone=None)

    @handlers.on("telling")
    async def telling(_: Event, ctx: Context) -> None:
        for number in range(200):
            await ctx.progress(f"{number} of 200 files")
            await asyncio.sleep(0)
        await ctx.wait_for("go")
        await ctx.progress("x" * 300)

    async with fleet(handlers) as f:
        reads = Reads(f.connection)
        event = await f.enqueue("tagged", {"customer": "acme", "order": 17, "paid": True, "gone": "x"})
        await event.result()
        tags = {"customer": "acme", "order": "17", "paid": "true", "attempt": "2"}
        assert (await reads.get(event.id) or {})["tags"] == tags
        (found,) = await reads.list_events(Filter(tags={"order": ["17"], "customer": ["acme"]}))
        assert found["id"] == event.id
        told = await f.enqueue("telling")
        await f.until(told.suspended)
        assert (await reads.get(told.id) or {})["progress"] == "199 of 200 files"
        await f.signal(told, "go")
        await told.result()
        job = await reads.get(told.id) or {}
        assert (job["progress"], job["tags"]) == ("x" * 199 + "…", {})
        assert [step["sort"] for step in job["steps"]] == ["wait", "signal"]
        for name, value, why in (
            ("a:b", "x", "the name of a tag has 1 to 40"),
            ("n" * 41, "x", "the name of a tag has 1 to 40"),
            ("name", "x" * 201, "the value of tag name has 1 to 200"),
            ("name", "", "the value of tag name has 1 to 200"),
            ("name", "two\nlines", "printable"),
            ("name", [1], "tag name is a list"),
        ):
            event = await f.enqueue("tagged", {"good": "x", name: value}, max_attempts=1)
            (error,) = await event.errors()
            assert error.startswith("TagError: ")
            assert why in error
            assert (await reads.get(event.id) or {})["tags"] == {}


# --- Sleeps and waits


def waiting() -> Handlers:
    """Return a handler that waits for values, as often as the payload says."""
    handlers = Handlers()

    @handlers.on("wait")
    async def wait(event: Event, ctx: Context) -> list[Any]:
        timeout = event.payload.get("timeout")
        times = range(event.payload.get("times", 1))
        return [await ctx.wait_for("value", timeout=timeout, default="nothing") for _ in times]

    return handlers


@virtual
async def test_a_sleep_ends_the_run_whatever_is_caught_and_another_goes_on() -> None:
    handlers = Handlers()

    @handlers.on("sleep")
    async def sleep(event: Event, ctx: Context) -> Any:
        try:
            await ctx.sleep("50ms")
        except Exception:  # noqa: BLE001 - what it is about
            return "caught"
        return {"claim": event.claim, "attempt": ctx.attempt}

    @handlers.on("in-thread")
    def sleep_in_thread(event: Event, ctx: Context) -> Any:
        number = ctx.run(ctx.step("one", lambda: 1))
        ctx.run(ctx.sleep("10ms"))
        return number + event.claim

    @handlers.on("swallow")
    async def swallow(event: Event, ctx: Context) -> Any:
        try:
            await ctx.sleep("10ms")
        except BaseException:  # noqa: BLE001 - what it is about
            return "swallowed"
        return event.claim

    async with fleet(handlers) as f:
        assert await (await f.enqueue("sleep")).result() == {"claim": 2, "attempt": 1}
        assert await (await f.enqueue("in-thread")).result() == 3
        assert await (await f.enqueue("swallow")).result() == 2


@virtual
async def test_a_suspended_event_holds_no_claim_says_what_it_waits_for_and_is_cancelled_at_once() -> None:
    async with fleet(waiting()) as f:
        event = await f.enqueue("wait")
        await f.until(event.suspended)
        row = await event.row()
        assert (row["claimed_by"], row["attempts"], row["retrying"]) == (None, 0, False)
        ((detail,),) = await f.sql("select detail from agent.why_waiting($1)", event.id)
        assert detail == "waits for value"
        assert await f.signal(event, "other", 1) == "sent"
        assert (await event.row())["vt"] == row["vt"]
        assert await f.signal(event, "value", {"a": [1]}) == "sent"
        assert await event.result() == [{"a": [1]}]
        assert await f.signal(event, "value", 2) is None
        job = await Reads(f.connection).get(event.id)
        assert job is not None
        assert {"waits", "waited"} <= {step.what for step in story_of(job)}
        event = await f.enqueue("wait")
        await f.until(event.suspended)
        assert await f.cancel(event, reason="enough") == "cancelled"
        assert (await event.row())["reason"] == "cancelled by surelane: enough"


@virtual
async def test_values_that_come_first_are_taken_in_order_until_the_timeout() -> None:
    async with fleet(waiting()) as f:
        event = await f.enqueue("wait", {"times": 3, "timeout": "5m"}, run_in="20s")
        for value in (1, None):
            await f.signal(event, "value", value)
        assert await event.result() == [1, None, "nothing"]
        assert 320 < f.now < 325


@virtual
async def test_a_step_beside_a_wait_is_finished_before_the_run_ends() -> None:
    handlers, ran = Handlers(), list[str]()

    @handlers.on("branches")
    async def branches(_: Event, ctx: Context) -> Any:
        async def slow() -> str:
            await asyncio.sleep(3)
            ran.append("slow")
            return "slow"

        return await asyncio.gather(ctx.wait_for("value"), ctx.step("slow", slow))

    async with fleet(handlers) as f:
        event = await f.enqueue("branches")
        await f.until(event.suspended)
        assert f.now > 3
        await f.signal(event, "value", 1)
        assert await event.result() == [1, "slow"]
        assert ran == ["slow"]


@virtual
async def test_a_group_goes_on_unless_the_wait_blocks_it() -> None:
    handlers = Handlers()

    @handlers.on("sleep")
    async def sleep(event: Event, ctx: Context) -> None:
        await ctx.sleep("1h", blocking=event.payload["blocking"])

    @handlers.on("quick")
    async def quick(_: Event, __: Context) -> None: ...

    async with fleet(handlers) as f:
        for blocking in (False, True):
            first = await f.enqueue("sleep", {"blocking": blocking}, group_key=f"g {blocking}")
            await f.until(first.suspended)
            second = await f.enqueue("quick", group_key=f"g {blocking}")
            if blocking:
                await f.sleep("10s")
                assert await second.why() == "group_waits"
            else:
                await second.result()
            assert (await first.row())["retrying"] is blocking


# --- Cancels


def hanging(said: list[str]) -> Handlers:
    """Return a handler that waits to be cancelled. The payload says what it does then."""
    handlers = Handlers()

    @handlers.on("hang")
    async def hang(event: Event, ctx: Context) -> Any:
        said.append("began")
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            said.append(f"cancelled {ctx.cancelled}")
            while event.payload.get("stays") and len(said) < 100:
                said.append("stays")
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(600)
            if event.payload.get("ignore"):
                return "done all the same"
            raise

    return handlers


@virtual
async def test_a_running_handler_is_cancelled_by_whom_and_why_unless_it_completes() -> None:
    said: list[str] = []
    async with fleet(hanging(said)) as f:
        event = await f.enqueue("hang")
        await f.until(lambda: said)
        assert await f.cancel(event, by="U1", reason="enough") == "running"
        row = await f.until(event.ended, "3s")
        assert (row["outcome"], row["reason"]) == ("cancelled", "cancelled while running by U1: enough")
        assert (row["cancelled_by"], row["attempts"]) == ("U1", 1)
        assert said == ["began", "cancelled True"]
        other = await f.enqueue("hang", {"ignore": True})
        await f.until(lambda: len(said) == 3)
        await f.cancel(other)
        assert await other.result() == "done all the same"


@virtual
async def test_a_running_handler_is_cancelled_without_notifications() -> None:
    said: list[str] = []
    settings = {"SURELANE_NOTIFICATIONS": "false", "SURELANE_POLL_INTERVAL": "1s"}
    async with fleet(hanging(said), settings=settings) as f:
        event, other = await f.enqueue("hang"), await f.enqueue("hang", {"stays": True})
        await f.until(lambda: len(said) == 2)
        await f.cancel(event)
        assert (await f.until(event.ended, "10s"))["outcome"] == "cancelled"
        await f.cancel(other)
        await f.sleep(5)
        assert said.count("stays") == 1, "it is cancelled once"


@virtual
async def test_a_waiting_member_of_a_group_is_cancelled_and_its_head_goes_on() -> None:
    said: list[str] = []
    async with fleet(hanging(said), workers=0) as f:
        first, second = [await f.enqueue("hang", group_key="g") for _ in range(2)]
        f.start()
        await f.until(lambda: said)
        assert await f.cancel(second) == "running"
        assert (await f.until(second.ended))["outcome"] == "cancelled"
        assert (await first.row())["claimed_by"]
        await f.cancel(first)
        assert (await f.until(first.ended))["reason"] == "cancelled while running"
        assert said == ["began", "cancelled True"]


@virtual
async def test_a_worker_that_hangs_is_fenced_after_the_grace() -> None:
    said: list[str] = []
    async with fleet(hanging(said), settings={"SURELANE_LEASE": "9s", "SURELANE_SWEEP_INTERVAL": "5s"}) as f:
        for stays in (False, True):
            said.clear()
            event = await f.enqueue("hang", {"stays": stays})
            await f.until(lambda: said)
            if not stays:
                f.freeze(f.workers[0], "30s")
            await f.cancel(event)
            row = await f.until(event.ended, "1m")
            assert (row["outcome"], row["reason"]) == ("cancelled", "cancelled while running")


# --- Retention, and running again


@virtual
async def test_event_runs_again_after_its_steps_and_a_new_run_keeps_those_before_the_named_one() -> None:
    ran: list[str] = []
    async with fleet(steps(ran)) as f:
        event = await f.enqueue("steps", {"runs": [[["a", "1"]]] * 2}, max_attempts=1)
        assert (await f.until(event.ended))["outcome"] == "failed"
        for calls in (1, 2):  # once it completed it begins anew
            await f.sql("select agent.rerun_events($1)", [event.id])
            assert await event.result() == ["1"]
            assert ran == ["1"] * calls
        ran.clear()
        event = await f.enqueue("steps", {"runs": [[["a", "1"], ["b", "2"], ["c", "3"]]]})
        await event.result()
        new = await f.rerun(event, "b")
        assert await new.result() == ["1", "2", "3"]
        assert ran == ["1", "2", "3", "2", "3"]
        reads = Reads(f.connection)
        job, old = await reads.get(new.id), await reads.get(event.id)
        assert job is not None
        assert old is not None
        assert (job["rerun_of"], old["rerun_as"]) == (event.id, [new.id])
        story = [(step.what, (step.detail or "").split(":")[0]) for step in story_of(job)]
        told = [("step (kept)", "a"), ("step", "b"), ("step", "c")]
        assert [each for each in story if each[0].startswith("step")] == told
        assert ("runs again", f"event {event.id}, from step b, steps kept") in story
        other = await f.rerun(event, "c", {"runs": [[["a", "9"]]]})
        assert (await other.errors())[0].startswith("StepMismatchError")
