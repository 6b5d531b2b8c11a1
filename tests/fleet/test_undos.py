"""Durable handlers: undos run in reverse order when an event fails for good, expires or is cancelled."""

import asyncio
from typing import Any

import pytest

from surelane.testing import fleet, virtual
from surelane_encryption.keys import new_key
from surelane_operator.reads.events import Reads
from surelane_operator.reads.timeline import story_of
from surelane_worker import Context, Event, Handlers

PARTS = ("flight", "hotel", "car")
SOON = {"SURELANE_SESSION_GRACE": "100ms", "SURELANE_SWEEP_INTERVAL": "1s"}
"""Settings with which a dead worker's events are soon another one's."""


def booked(*parts: str) -> list[str]:
    return [f"booked {part}" for part in parts]


def undid(*parts: str) -> list[str]:
    return [f"undid {part}" for part in parts]


UNDONE = undid("car", "hotel", "flight")
WHOLE = booked(*PARTS) + UNDONE


class Agency:
    """Books trips as the payloads say, and notes what it does."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.died: list[str] = []
        self.fleet: Any = None
        self.handlers = Handlers()
        for kind, bounds in (
            ("trip", {}),
            ("trip-once", {"max_attempts": 1}),
            ("trip-timed", {"max_attempts": 1, "timeout": "5s"}),
        ):
            self.handlers.on(kind, backoff="1ms", **bounds)(self.trip)
        self.handlers.on_failure("trip", "trip-once")(self.failed)

    @property
    def effects(self) -> list[str]:
        """What was booked, undone and paid, in order."""
        return [line for line in self.log if line.startswith(("booked", "undid", "paid"))]

    async def failed(self, event: Event, _: Context) -> None:
        self.log.append(f"hook {event.payload['failure']['outcome']}")

    async def trip(self, event: Event, ctx: Context) -> Any:  # noqa: C901 - it dies between any two lines
        """Book three parts, each with its undo. Die where the payload says so, and end as it says."""
        payload = event.payload

        async def die(where: str) -> None:
            if where in payload.get("dies", ()) and where not in self.died:
                self.died.append(where)
                await self.fleet.die()

        async def book(part: str) -> str:
            await die(f"in {part}")
            self.log.append(f"booked {part}")
            return f"{part} 1"

        async def undo(part: str) -> None:
            await die(f"in undo {part}")
            self.log.append(f"undoes {part}")
            if self.log.count(f"undoes {part}") <= payload.get("fails", {}).get(part, 0):
                raise LookupError(f"no {part}")
            if part in payload.get("hangs", ()):
                await asyncio.sleep(600)
            self.log.append(f"undid {part}")

        for part in PARTS:
            await die(f"before {part}")
            await ctx.undo(part, undo, part, **payload.get("bounds", {}))
            await die(f"with undo {part}")
            await ctx.step(part, book, part)
            await die(f"after {part}")
        match payload.get("how"):
            case "fail":
                raise RuntimeError("no visa")
            case "wait":
                await ctx.wait_for("answer")
                await ctx.step("pay", self.log.append, "paid")
            case "hang":
                self.log.append("hangs")
                await asyncio.sleep(600)
        return "booked"


# --- Who fails, is cancelled or expires, undoes


@virtual
async def test_failed_event_undoes_in_reverse_order_and_keeps_its_end() -> None:
    agency = Agency()
    async with fleet(agency.handlers) as f:
        event = await f.enqueue("trip", {"how": "fail"})
        assert await event.errors() == ["RuntimeError: no visa"] * 3
        row = await event.row()
        assert (row["outcome"], row["reason"], row["attempts"]) == ("failed", "attempts_exhausted", 3)
        assert agency.effects == WHOLE
        await f.until(lambda: agency.log[-1] == "hook failed")
        job = await Reads(f.connection).get(event.id)
        assert job is not None
        story = [(step.what, (step.detail or "").split(":")[0]) for step in story_of(job)]
        undos = ["undo car", "undo hotel", "undo flight"]
        assert [name for what, name in story if what == "step"] == [*PARTS, *undos]
        assert [what for what, _ in story if what == "undoing"] == ["undoing"]

        # Undone, it begins anew when it runs again, also as a new event.
        await f.sql("select agent.rerun_events($1)", [event.id])
        assert await event.steps() == []
        assert (await f.until(event.ended))["outcome"] == "failed"
        assert agency.effects == WHOLE * 2
        await f.until((await f.rerun(event, "car")).ended)
        assert agency.effects == WHOLE * 3


@virtual
async def test_completed_event_undoes_nothing_until_it_fails_from_a_step_on() -> None:
    agency = Agency()
    async with fleet(agency.handlers) as f:
        event = await f.enqueue("trip")
        assert await event.result() == "booked"
        assert agency.effects == booked(*PARTS)
        rerun = await f.rerun(event, "car", {"how": "fail"})
        assert (await f.until(rerun.ended))["outcome"] == "failed"
        assert agency.effects == [*booked(*PARTS, "car"), *UNDONE]


@virtual
async def test_cancelled_and_expired_events_undo_before_they_end() -> None:
    agency = Agency()
    async with fleet(agency.handlers, settings=SOON) as f:
        for how, reason in (("wait", "cancelled by U1"), ("hang", "cancelled while running by U1")):
            event = await f.enqueue("trip", {"how": how})
            await f.until(event.suspended if how == "wait" else lambda: "hangs" in agency.log)
            assert await f.cancel(event, by="U1", reason="no money") == "running"
            row = await f.until(event.ended)
            assert (row["outcome"], row["reason"]) == ("cancelled", f"{reason}: no money")
            assert (row["cancelled_by"], agency.effects) == ("U1" if how == "hang" else None, WHOLE)
            agency.log.clear()
        # Past the deadline it has time for its undos, of which one is tried again later.
        bounds = {"retries": 1, "backoff": "30s"}
        event = await f.enqueue("trip", {"how": "wait", "fails": {"car": 1}, "bounds": bounds})
        await f.until(event.suspended)
        await f.sql("update agent.event set deadline = agent.clock() where id = $1", event.id)
        row = await f.until(event.ended)
        assert (row["outcome"], row["reason"]) == ("expired", "deadline_passed")
        assert agency.effects == WHOLE


@virtual
async def test_many_events_that_are_cancelled_together_undo_each() -> None:
    agency = Agency()
    async with fleet(agency.handlers) as f:
        events = [await f.enqueue("trip", {"how": "wait"}, group_key="g") for _ in range(5)]
        for event in events:
            await f.until(event.suspended)
        plain = await f.enqueue("trip", run_in="1h")
        ids = [event.id for event in events]
        answers = dict(await f.sql("select id, answer from agent.cancel_jobs($1)", [*ids, plain.id]))
        assert answers == {**dict.fromkeys(ids, "running"), plain.id: "cancelled"}
        for event in events:
            assert (await f.until(event.ended))["outcome"] == "cancelled"
        assert sorted(agency.effects) == sorted(WHOLE * 5)


@virtual
async def test_parent_and_child_that_are_cancelled_undo_both() -> None:
    agency = Agency()

    @agency.handlers.on("parent")
    async def parent(event: Event, ctx: Context) -> Any:
        await ctx.undo("parent", agency.log.append, "undid parent")
        return await ctx.run("trip", event.payload)

    async with fleet(agency.handlers) as f:
        event = await f.enqueue("parent", {"how": "wait"})
        (child,) = await f.until(event.children)
        await f.until(event.suspended)
        await f.until(child.suspended)
        await f.cancel(event)
        assert (await f.until(event.ended))["outcome"] == "cancelled"
        assert (await f.until(child.ended))["outcome"] == "cancelled"
        assert sorted(agency.effects) == sorted([*WHOLE, "undid parent"])


@virtual
async def test_every_form_of_handler_undoes() -> None:
    handlers, log = Handlers(), list[str]()

    @handlers.on("in-thread", max_attempts=1)
    def in_thread(_: Event, ctx: Context) -> None:
        for part in PARTS:
            ctx.run(ctx.undo(part, log.append, f"undid {part}"))
            ctx.run(ctx.step(part, log.append, f"booked {part}"))
        raise RuntimeError("no visa")

    @handlers.on("at-once", max_attempts=1)
    async def at_once(_: Event, ctx: Context) -> None:
        async def part(name: str) -> None:
            await ctx.undo(name, log.append, f"undid {name}")
            await ctx.step(name, log.append, f"booked {name}")
            if name != "flight":
                await ctx.wait_for(name)

        await asyncio.gather(*map(part, PARTS))

    async with fleet(handlers) as f:
        await f.until((await f.enqueue("in-thread")).ended)
        assert log == WHOLE
        log.clear()
        event = await f.enqueue("at-once")
        await f.until(event.suspended)
        await f.cancel(event)
        await f.until(event.ended)
        assert log[3:] == UNDONE


@pytest.mark.parametrize(("again", "errors"), [(2, []), (1e6, ["UndoError: not undone: undo hotel"])])
@virtual
async def test_undo_is_come_to_beside_what_must_not_begin_again(again: float, errors: list[str]) -> None:
    handlers, log = Handlers(), list[str]()

    async def charge() -> None:
        log.append("charges")
        await asyncio.sleep(600)

    @handlers.on("beside", max_attempts=1)
    async def beside(event: Event, ctx: Context) -> None:
        async def book() -> None:
            await asyncio.sleep(2 if event.claim == 1 else again)  # such as a call of another service
            await ctx.undo("hotel", log.append, "undid hotel")
            await ctx.step("hotel", log.append, "booked hotel")

        await asyncio.gather(ctx.step("charge", charge), book())

    async with fleet(handlers) as f:
        event = await f.enqueue("beside")
        await f.until(lambda: "booked hotel" in log)
        await f.signal(event, "stop")
        await f.cancel(event)
        assert (await event.errors())[-1:] == errors
        assert log == ["charges", "booked hotel", *([] if errors else ["undid hotel"])]


@virtual
async def test_nothing_of_a_stopped_handler_begins_beside_its_undos() -> None:
    handlers, log = Handlers(), list[str]()

    @handlers.on("left", max_attempts=1)
    async def left(_: Event, ctx: Context) -> None:
        async def look() -> None:
            await ctx.step("look", log.append, "looked")
            await asyncio.Event().wait()

        async def charge() -> None:
            async with asyncio.TaskGroup() as group:  # it ends as its task is cancelled
                group.create_task(look())
            await ctx.step("charge", log.append, "charged")

        await ctx.undo("trip", asyncio.sleep, 1)
        charging = asyncio.create_task(charge())
        await ctx.wait_for("never")
        await charging

    async with fleet(handlers) as f:
        event = await f.enqueue("left")
        await f.until(event.suspended)
        await f.cancel(event)
        assert (await f.until(event.ended))["outcome"] == "cancelled"
        assert log == ["looked"]


# --- Undos that fail


@virtual
async def test_undo_that_fails_is_tried_again_after_earlier_ones_or_named() -> None:
    agency = Agency()
    async with fleet(agency.handlers) as f:
        event = await f.enqueue("trip-once", {"how": "fail", "fails": {"hotel": 2}})
        errors = ["RuntimeError: no visa", "LookupError: no hotel", "LookupError: no hotel"]
        assert await event.errors() == errors
        row = await event.row()
        assert (row["outcome"], row["attempts"], row["max_attempts"]) == ("failed", 1, None)
        assert agency.effects == booked(*PARTS) + undid("car", "flight", "hotel")
        agency.log.clear()
        event = await f.enqueue("trip", {"how": "fail", "fails": {"hotel": 99}})
        assert (await event.errors())[-1] == "UndoError: not undone: undo hotel"
        assert (await event.row())["outcome"] == "failed"
        assert agency.effects == booked(*PARTS) + undid("car", "flight")
        agency.log.clear()
        event = await f.enqueue("trip-timed", {"how": "fail", "hangs": ["flight"]})
        types = [error.partition(":")[0] for error in await event.errors()]
        assert types == ["RuntimeError", *["HandlerTimeoutError"] * 3, "UndoError"]
        assert agency.effects == booked(*PARTS) + undid("car", "hotel")
        agency.log.clear()
        began, bounds = f.now, {"retries": 1, "backoff": "30s"}
        event = await f.enqueue("trip-once", {"how": "fail", "fails": {"car": 1}, "bounds": bounds})
        await f.until(event.suspended)
        assert await f.cancel(event) == "running"
        assert len(await event.errors()) == 1
        assert (await event.row())["outcome"] == "failed"
        assert agency.effects == WHOLE
        assert f.now - began > 15, "it is suspended between its tries"


@virtual
async def test_undo_that_the_handler_forgot_is_named_and_the_others_run() -> None:
    handlers, log = Handlers(), list[str]()

    @handlers.on("changed", max_attempts=1)
    async def changed(event: Event, ctx: Context) -> None:
        await ctx.undo("kept", log.append, "undid kept")
        if event.claim == 1:
            await ctx.undo("forgotten", log.append, "undid forgotten")
        raise RuntimeError("no visa")

    async with fleet(handlers) as f:
        assert (await (await f.enqueue("changed")).errors())[-1] == "UndoError: not undone: undo forgotten"
        assert log == ["undid kept"]


@virtual
async def test_undos_that_no_worker_runs_end_if_an_operator_expires_the_event() -> None:
    agency = Agency()
    async with fleet(agency.handlers) as f:
        event = await f.enqueue("trip", {"how": "hang"})
        await f.until(lambda: "hangs" in agency.log)
        f.workers[0].host.frozen = True
        assert await f.cancel(event, by="U1") == "running"
        await f.sleep("1m")
        assert await f.cancel(event, by="U2") == "running"
        ((answer,),) = await f.sql("select answer from agent.expire_jobs($1, 'gone')", [event.id])
        assert answer == "expired"
        row = await event.row()
        assert (row["outcome"], row["reason"]) == ("cancelled", "cancelled while running by U1")
        unsure = "its undos began although its handler may still run"
        missed = "not undone: undo car, undo hotel, undo flight"
        assert [error["message"] for error in row["errors"]] == [unsure, missed]


# --- Killed workers

EVERYWHERE = [
    f"{where} {part}" for part in PARTS for where in ("before", "with undo", "in", "after", "in undo")
]


@virtual
async def test_killed_at_every_boundary_each_part_is_booked_and_undone_once() -> None:
    undoing = [f"in undo {part}" for part in PARTS]
    for how, outcome, dies in (("fail", "failed", EVERYWHERE), ("wait", "cancelled", undoing)):
        agency = Agency()
        async with fleet(agency.handlers, settings=SOON) as agency.fleet:
            event = await agency.fleet.enqueue("trip", {"how": how, "dies": dies}, max_attempts=9)
            if how == "wait":
                await agency.fleet.until(event.suspended)
                await agency.fleet.cancel(event)
            row = await agency.fleet.until(event.ended)
            assert (row["outcome"], len(agency.died)) == (outcome, len(dies))
            assert agency.effects == WHOLE


@pytest.mark.parametrize(
    ("dies", "did", "undone"),
    [
        ("before flight", (), ()),
        ("with undo flight", (), ("flight",)),
        ("in hotel", ("flight",), ("hotel", "flight")),
        # What comes right after the last stored step may be an undo of that step, so it is registered, too.
        ("after hotel", ("flight", "hotel"), ("car", "hotel", "flight")),
        ("after car", PARTS, ("car", "hotel", "flight")),
    ],
)
@virtual
async def test_event_whose_worker_died_in_its_last_attempt_undoes_what_was_registered(
    dies: str, did: tuple[str, ...], undone: tuple[str, ...]
) -> None:
    agency = Agency()
    async with fleet(agency.handlers, settings=SOON) as f:
        agency.fleet = f
        event = await f.enqueue("trip-once", {"how": "fail", "dies": [dies, "in undo flight"]})
        row = await f.until(event.ended)
        assert (row["outcome"], row["reason"]) == ("expired", "attempts_exhausted")
        assert len(agency.died) == (2 if undone else 1)
        assert agency.effects == [*booked(*did), *undid(*undone)]


@virtual
async def test_an_undo_after_its_step_and_no_reply_come_after_a_death_between_them() -> None:
    handlers, log = Handlers(), list[str]()

    def book(part: str) -> str:
        log.append(f"booked {part}")
        return f"{part} 17"

    @handlers.on("after", max_attempts=1)
    async def after(_: Event, ctx: Context) -> None:
        for part in PARTS:
            booking = await ctx.step(part, book, part)
            if part == "hotel" and "died" not in log:
                log.append("died")
                await f.die()
            await ctx.undo(part, log.append, f"undid {booking}")

    @handlers.on("telling", max_attempts=1)
    async def telling(event: Event, ctx: Context) -> None:
        await ctx.undo("told", log.append, "undid told")
        if "died" not in log:
            log.append("died")
            await f.die()
        await ctx.slack.reply(event, "done", channel="C1")

    async with fleet(handlers, settings=SOON) as f:
        assert (await f.until((await f.enqueue("after")).ended))["outcome"] == "expired"
        assert log == [*booked("flight", "hotel"), "died", *undid("hotel 17", "flight 17")]
        log.clear()
        event = await f.enqueue("telling")
        row = await f.until(event.ended)
        assert (row["outcome"], log) == ("expired", ["died", "undid told"])
        assert "replies" not in row["notes"]  # one is noted before it is sent
        assert f.slack.messages == []


@virtual
async def test_encrypted_event_undoes_and_keeps_its_errors_encrypted() -> None:
    agency = Agency()
    encryption = {"SURELANE_ENCRYPTION_KEYS": new_key(), "SURELANE_ENCRYPT_EVENTS": "true"}
    async with fleet(agency.handlers, settings=encryption) as f:
        event = await f.enqueue("trip-once", {"how": "fail", "fails": {"hotel": 99}})
        errors = await event.errors()
        assert agency.effects == booked(*PARTS) + undid("car", "flight")
        assert "no visa" not in str(errors)
        assert "no hotel" not in str(errors)
        assert errors[0].startswith("RuntimeError")
        assert errors[-1] == "UndoError: not undone: undo hotel"
