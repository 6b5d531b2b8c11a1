"""Handlers start children and wait for their results."""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from surelane.testing import fleet, virtual
from surelane_encryption.keys import new_key
from surelane_worker import Context, Continuation, Event, FanOut, Handlers, Job
from surelane_worker.errors import ChildError
from surelane_worker.handling.children import IfFailed


class Family:
    """Handlers of parents and their children, which note what they run."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.handlers = Handlers()
        for kind in ("part", "parent", "grandparent", "busy-parent"):
            self.handlers.on(kind, backoff="1s")(getattr(self, kind.replace("-", "_")))

    async def part(self, event: Event, ctx: Context) -> Any:
        """End as the payload says."""
        given = event.payload
        self.log.append(f"part {given.get('n')}")
        if given.get("waits"):
            await ctx.wait_for("go")
        if "fails" in given:
            raise ValueError(given["fails"])
        if given.get("anew"):
            return ctx.continue_as_new({"n": 7})
        if given.get("fans"):
            return FanOut([Job("part", {"n": 1})], Continuation("part", {"n": 8}))
        return given.get("n")

    async def parent(self, event: Event, ctx: Context) -> Any:
        """Run children as the payload says, and fail afterwards as often as it says."""
        self.log.append("parent")
        how = event.payload.get("how", {})
        try:
            results = await asyncio.gather(*(ctx.run("part", each, **how) for each in event.payload["parts"]))
        except ChildError as error:
            if event.payload.get("raises"):
                raise
            return [error.kind, error.key, error.outcome, error.reason, error.message]
        if event.claim < event.payload.get("claims", 0):
            raise RuntimeError("once more")
        return results

    async def grandparent(self, event: Event, ctx: Context) -> Any:
        """Run a parent, whose children run under it."""
        return await ctx.run("parent", {"parts": event.payload["parts"]}, key="one")

    async def busy_parent(self, event: Event, ctx: Context) -> Any:
        """Go on in a step until the child has ended."""

        async def until_child() -> int:
            await completed(event, ctx, 1)
            return event.claim

        child = asyncio.create_task(ctx.run("part", {"n": 1, **event.payload}))
        return [await ctx.step("busy", until_child), await child]


async def completed(event: Event, ctx: Context, most: int) -> None:
    """Wait, in a handler, until so many children have completed."""
    ended: list[str] = []
    while ended.count("completed") < most:
        await asyncio.sleep(0.5)
        ended = [child.status for child in await ctx.queue.children(event.id)]


async def child_of(f: Any, event: Any) -> Any:
    """Wait until an event has a suspended child, and return it."""
    (child,) = await f.until(event.children)
    await f.until(child.suspended)
    return child


@virtual
async def test_options_reach_children_and_their_results_come_back() -> None:
    family = Family()

    @family.handlers.on("sync-parent")
    def sync_parent(_: Event, ctx: Context) -> Any:
        return ctx.run(ctx.run("part", {"n": 3}))

    async with fleet(family.handlers) as f:
        event = await f.enqueue("parent", {"parts": [{"n": {"deep": [1, "é"]}}]})
        assert await event.result() == [{"deep": [1, "é"]}]
        (child,) = await event.children()
        assert (child.key, (await child.row())["kind"]) == (f"{event.id}:part:1", "part")
        ((tree,),) = await f.sql("select agent.workflow($1)->'children' = '{\"completed\": 1}'", event.id)
        assert tree
        large = "x" * 999_990
        assert await (await f.enqueue("parent", {"parts": [{"n": large}]})).result() == [large]
        assert await (await f.enqueue("sync-parent")).result() == 3
        assert await (await f.enqueue("grandparent", {"parts": [{"n": 1}, {"n": 2}]})).result() == [1, 2]
        # What takes the place of a child gives its result.
        assert await (await f.enqueue("parent", {"parts": [{"anew": True}]})).result() == [7]
        assert await (await f.enqueue("parent", {"parts": [{"fans": True}]})).result() == [8]
        assert await (await f.enqueue("busy-parent")).result() == [1, 1], "it ends before its parent suspends"
        payload = {"parts": [{"n": 1}], "how": {"key": "a", "priority": 0, "max_attempts": 2}}
        event = await f.enqueue("parent", payload)
        await event.result()
        (child,) = await event.children()
        assert child.key == f"{event.id}:part [a]:1"
        (given,) = await f.sql("select priority, max_attempts from agent.job where id = $1", child.id)
        assert tuple(given) == (0, 2)


@virtual
async def test_child_that_does_not_complete_raises() -> None:
    settings = {"SURELANE_SWEEP_INTERVAL": "1s"}
    async with fleet(Family().handlers, settings=settings) as f:
        event = await f.enqueue("parent", {"parts": [{"fails": "no such thing"}], "how": {"max_attempts": 2}})
        told = ["part", f"{event.id}:part:1", "failed", "attempts_exhausted", "no such thing"]
        assert await event.result() == told
        raising = {"parts": [{"fails": "no"}], "raises": True, "how": {"max_attempts": 1}}
        event = await f.enqueue("parent", raising, max_attempts=2)
        error = (await event.errors())[-1]
        assert error.startswith("ChildError: ")
        assert "no" in error
        event = await f.enqueue("parent", {"parts": [{"waits": True}]})
        child = await child_of(f, event)
        await f.sql("update agent.event set deadline = agent.clock() where id = $1", child.id)
        assert (await event.result())[2] == "expired"
        event = await f.enqueue("parent", {"parts": [{"waits": True}]})
        assert await f.cancel(await child_of(f, event), by="ada", reason="enough") == "cancelled"
        assert (await event.result())[2:] == ["cancelled", *["cancelled by ada: enough"] * 2]


@virtual
async def test_cancelling_a_parent_cancels_its_live_children() -> None:
    async with fleet(Family().handlers) as f:
        event = await f.enqueue("grandparent", {"parts": [{"waits": True}]})
        child = await child_of(f, event)
        grandchild = await child_of(f, child)
        assert await f.cancel(event, by="ada", reason="enough") == "cancelled"
        for each in (event, child, grandchild):
            assert (await f.until(each.ended))["outcome"] == "cancelled"
        event = await f.enqueue("busy-parent", {"waits": True})
        child = await child_of(f, event)
        assert await f.cancel(event, by="ada", reason="enough") == "running"
        for each in (event, child):
            assert (await f.until(each.ended))["outcome"] == "cancelled"


@virtual
async def test_parent_that_runs_again_runs_again_the_children_that_did_not_complete() -> None:
    family = Family()
    async with fleet(family.handlers) as f:
        event = await f.enqueue("parent", {"parts": [{"waits": True, "n": 5}]})
        child = await child_of(f, event)
        await f.until(event.suspended)
        await f.cancel(event, by="ada", reason="enough")
        await f.until(child.ended)
        await f.sql("select agent.rerun_events(array[$1::int8])", event.id)
        running = "select from agent.job where continuation_id = $1 and finished_at is null"
        while not await f.sql(running, event.id):
            await f.sleep(0.1)
        await f.queue.signal(child.key, "go")
        assert await event.result() == [5]

        family.log.clear()
        parts = [{"n": 1}, {"n": 2, "fails": "no"}]
        payload = {"parts": parts, "raises": True, "how": {"max_attempts": 1}}
        event = await f.enqueue("parent", payload, max_attempts=1)
        assert (await f.until(event.ended))["outcome"] == "failed"
        for child in await event.children():
            await f.until(child.ended)
        await f.sql("select agent.rerun_events(array[$1::int8])", event.id)
        assert (await f.until(event.ended))["outcome"] == "failed"
        assert sorted(family.log) == ["parent"] * 4 + ["part 1", "part 2", "part 2"]


@virtual
async def test_new_event_for_an_ended_parent_runs_children_of_its_own() -> None:
    family = Family()

    @family.handlers.on("sequence")
    async def sequence(event: Event, ctx: Context) -> Any:
        return [await ctx.run("part", given) for given in event.payload["parts"]]

    async with fleet(family.handlers) as f:
        event = await f.enqueue("sequence", {"parts": [{"n": 1}, {"n": 2}]})
        await event.result()
        assert await (await f.rerun(event, "child part:2")).result() == [1, 2]
        assert sorted(family.log) == ["part 1", "part 2", "part 2"]


@virtual
async def test_parent_that_ends_leaves_its_child_alone() -> None:
    family = Family()

    @family.handlers.on("leaving")
    async def leaving(_: Event, ctx: Context) -> Any:
        child = asyncio.create_task(ctx.run("part", {"waits": True}))
        pause = asyncio.create_task(ctx.sleep("2s"))
        await asyncio.wait({child, pause}, return_when=asyncio.FIRST_COMPLETED)
        return child.done()

    async with fleet(family.handlers) as f:
        event = await f.enqueue("leaving")
        child = await child_of(f, event)
        assert await event.result() is False
        await f.signal(child, "go")
        assert await child.result() is None


@virtual
async def test_later_attempts_start_no_child_again_and_twenty_run_at_once() -> None:
    family = Family()
    async with fleet(family.handlers) as f:
        event = await f.enqueue("parent", {"parts": [{"n": 1}], "claims": 4})
        assert await event.result() == [1]
        assert (family.log.count("part 1"), family.log.count("parent")) == (1, 4)
        family.log.clear()
        event = await f.enqueue("parent", {"parts": [{"n": n} for n in range(20)]})
        assert await event.result() == list(range(20))
        parts = [line for line in family.log if line != "parent"]
        assert sorted(parts) == sorted(f"part {n}" for n in range(20))


@virtual
async def test_a_child_is_refused_with_another_payload_or_with_anothers_key_or_in_its_blocked_group() -> None:
    family = Family()

    @family.handlers.on("other-payload", backoff="1s")
    async def other_payload(event: Event, ctx: Context) -> Any:
        return await ctx.run("part", {"n": event.claim})

    async with fleet(family.handlers) as f:
        event = await f.enqueue("other-payload", max_attempts=1)
        (error,) = await event.errors()
        assert error.startswith("StepMismatchError: step child part:1 was stored for other arguments")
        event = await f.enqueue("parent", {"parts": [{"n": 1}]}, max_attempts=1, run_in="2s")
        await f.enqueue("part", {"waits": True}, item_key=f"{event.id}:part:1")
        assert (await event.errors())[0].startswith("Conflict: ")
        payload = {"parts": [{"n": 1}], "how": {"group_key": "orders", "blocking": True}}
        event = await f.enqueue("parent", payload, group_key="orders", max_attempts=1)
        (error,) = await event.errors()
        assert error.startswith("StepMismatchError: ")
        assert await event.children() == []


@virtual
async def test_group_goes_on_while_its_parent_waits_unless_that_blocks_it() -> None:
    async with fleet(Family().handlers) as f:
        event = await f.enqueue("parent", {"parts": [{"waits": True}]}, group_key="thread")
        child = await child_of(f, event)
        await f.until(event.suspended)
        behind = await f.enqueue("part", {"n": 2}, group_key="thread")
        assert await behind.result() == 2
        await f.signal(child, "go")
        assert await event.result() == [None]
        blocking = {"parts": [{"waits": True}], "how": {"blocking": True}}
        event = await f.enqueue("parent", blocking, group_key="thread")
        child = await child_of(f, event)
        await f.until(event.suspended)
        behind = await f.enqueue("part", {"n": 3}, group_key="thread")
        await (await f.enqueue("part")).result()
        assert (await behind.row())["claimed"] == []
        await f.signal(child, "go")
        assert await behind.result() == 3
        assert await event.ended() is not None
        # A child in a group takes its turn there.
        payload = {"parts": [{"n": 1}, {"n": 2}], "how": {"group_key": "orders"}}
        event = await f.enqueue("parent", payload, group_key="orders")
        assert await event.result() == [1, 2]
        assert {(await child.row())["group_key"] for child in await event.children()} == {"orders"}


@virtual
async def test_database_has_nothing_of_an_encrypted_childs_words() -> None:
    family, word = Family(), "hidden-word"

    @family.handlers.on("secretive", max_attempts=1)
    async def secretive(_: Event, ctx: Context) -> Any:
        assert await ctx.run("part", {"n": word}) == word
        try:
            await ctx.run("part", {"fails": word}, max_attempts=1)
        except ChildError as error:
            return error.message == word

    encryption = {"SURELANE_ENCRYPTION_KEYS": new_key(), "SURELANE_ENCRYPT_EVENTS": "true"}
    async with fleet(family.handlers, settings=encryption) as f:
        event = await f.enqueue("secretive")
        await event.result()
        await f.sleep("10s")
        assert family.log == [f"part {word}", "part None"]
        for table in f.database.tables:
            assert not await f.sql(f"select from {table} as r where position($1 in r::text) > 0", word), table


@virtual
async def test_children_are_started_once_although_the_worker_is_killed_everywhere() -> None:
    handlers, died, started = Handlers(), list[str](), list[int]()

    async def die_once(where: str) -> None:
        if where not in died:
            died.append(where)
            await f.die()

    @handlers.on("part")
    async def part(event: Event, _: Context) -> int:
        if event.payload["n"] == 1:
            await die_once("in part")
        started.append(event.payload["n"])
        return int(event.payload["n"])

    @handlers.on("mortal-parent")
    async def mortal_parent(event: Event, ctx: Context) -> Any:
        await die_once("at start")
        results = [await ctx.run("part", {"n": 1})]
        await die_once("after one")
        results += await asyncio.gather(*(ctx.run("part", {"n": n}) for n in (2, 3)))
        await die_once("after more")
        last = asyncio.create_task(ctx.run("part", {"n": 4}))

        async def until_started() -> None:
            await completed(event, ctx, 4)
            await die_once("before the suspension")

        await ctx.step("until started", until_started)
        return [*results, await last]

    settings = {"SURELANE_SESSION_GRACE": "100ms"}
    async with fleet(handlers, settings=settings) as f:
        event = await f.enqueue("mortal-parent", max_attempts=100)
        assert await event.result() == [1, 2, 3, 4]
        assert (len(died), sorted(started)) == (5, [1, 2, 3, 4])
        assert [await child.why() for child in await event.children()] == ["completed"] * 4


# --- A parent that does not complete


class Trip:
    """Parents with undos, and children that charge after some seconds, which note what they do."""

    def __init__(self, if_failed: IfFailed) -> None:
        self.log: list[str] = []
        self.fleet: Any = None
        self.handlers, self.if_failed = Handlers(), if_failed
        for kind in ("charge", "bad", "trip", "outer", "cut"):
            self.handlers.on(kind, backoff="1ms", max_attempts=1)(getattr(self, kind))

    async def charge(self, event: Event, ctx: Context) -> None:
        """Charge in a step, and undo that if it is cancelled."""
        await ctx.undo("refund", self.log.append, "refunded")
        await ctx.step("charge", self.slow if event.payload["thread"] else self.slow_async)

    async def slow_async(self) -> None:
        self.log.append("charges")
        await asyncio.sleep(5)
        self.log.append("charged")

    def slow(self) -> None:
        asyncio.run_coroutine_threadsafe(self.slow_async(), self.fleet.loop).result()

    async def bad(self, _: Event, __: Context) -> None:
        """Fail once the other child charges."""
        while "charges" not in self.log:  # noqa: ASYNC110 - it is noted in another event
            await asyncio.sleep(0.1)
        raise LookupError("no seat")

    async def trip(self, event: Event, ctx: Context) -> None:
        await ctx.undo("trip", self.log.append, "trip undone")
        payload = event.payload
        charge = ctx.run("charge", payload, if_failed=self.if_failed)
        if payload["fails"]:
            await asyncio.gather(charge, ctx.run("bad", max_attempts=1))
        await charge

    async def outer(self, event: Event, ctx: Context) -> None:
        """Run the children without an undo, under a parent that has one."""
        if "inner" not in event.payload:
            await ctx.undo("trip", self.log.append, "trip undone")
            await ctx.run("outer", {**event.payload, "inner": True}, if_failed=self.if_failed)
        charge = ctx.run("charge", event.payload, if_failed=self.if_failed)
        await asyncio.gather(charge, *([ctx.run("bad")] if event.payload["fails"] else []))

    async def cut(self, event: Event, ctx: Context) -> None:
        """Give the child up, and fail later."""
        await ctx.undo("trip", self.log.append, "trip undone")
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await ctx.run("charge", event.payload, if_failed=self.if_failed)
        await ctx.step("go on", lambda: None)
        raise LookupError("no seat")


SOON = {"SURELANE_SESSION_GRACE": "100ms", "SURELANE_SWEEP_INTERVAL": "1s"}


@pytest.mark.parametrize("if_failed", ["cancel", "await"])
@pytest.mark.parametrize(
    ("kind", "end", "thread"),
    [
        ("trip", "failed", True),
        ("trip", "cancelled", True),
        ("trip", "expired", False),
        ("outer", "failed", False),
        ("outer", "cancelled", True),
        ("outer", "expired", True),
        ("cut", "failed", False),
    ],
)
@virtual
async def test_a_parent_is_undone_after_its_children(
    if_failed: IfFailed, kind: str, end: str, thread: bool
) -> None:
    trip = Trip(if_failed)
    async with fleet(trip.handlers, settings=SOON) as f:
        trip.fleet = f
        event = await f.enqueue(kind, {"fails": end == "failed", "thread": thread})
        await f.until(lambda: "charges" in trip.log)
        if end == "failed":
            assert (await f.until(event.ended))["outcome"] == end
        else:
            await f.until(event.suspended)
            if end == "cancelled":
                await f.cancel(event)
            else:
                await f.sql("update agent.event set deadline = agent.clock() where id = $1", event.id)
            assert (await f.until(event.ended))["outcome"] == end
    charged = ["charged"] if thread or if_failed == "await" else []
    refunded = ["refunded"] if if_failed == "cancel" else []
    assert trip.log == ["charges", *charged, *refunded, "trip undone"]


@pytest.mark.parametrize("if_failed", ["cancel", "await"])
@pytest.mark.parametrize("kind", [pytest.param("trip", marks=pytest.mark.slow), "outer"])
@virtual
async def test_so_it_is_although_its_workers_die(kind: str, if_failed: IfFailed) -> None:
    for nth in range(5):
        trip = Trip(if_failed)
        async with fleet(trip.handlers, settings=SOON) as f:
            trip.fleet = f
            event = await f.enqueue(kind, {"fails": True, "thread": False}, max_attempts=9)
            await f.until(partial(trip.log.count, "charges"))
            for _ in range(3):
                await f.sleep(0.01 + 0.4 * nth)
                await f.kill()
                f.start()
            await f.until(event.ended)
        assert trip.log.index("trip undone") == len(trip.log) - 1
        assert "refunded" in trip.log or "charged" in trip.log


@pytest.mark.parametrize("fails", [False, True])
@virtual
async def test_a_child_may_be_left_alone(fails: bool) -> None:
    trip = Trip("leave")
    async with fleet(trip.handlers, settings=SOON) as f:
        trip.fleet = f
        event = await f.enqueue("trip", {"fails": fails, "thread": False})
        await f.until(lambda: "charges" in trip.log)
        if not fails:
            await f.until(event.suspended)
            await f.cancel(event)
        await f.until(event.ended)
        await f.until(lambda: "charged" in trip.log)
    assert trip.log == ["charges", "trip undone", "charged"]


@virtual
async def test_an_asynchronous_handler_runs_a_child_by_its_kind_alone() -> None:
    handlers = Handlers()

    @handlers.on("parent", max_attempts=1)
    async def parent(_: Event, ctx: Context) -> None:
        ctx.run(Job("child"))  # type: ignore[call-overload]

    async with fleet(handlers) as f:
        (error,) = await (await f.enqueue("parent")).errors()
        assert error.startswith("TypeError: ctx.run of a coroutine is for synchronous handlers")
