"""Versions of handlers: a run stays with the version that it began under, and changed code repeats no step."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from surelane.testing import fleet, virtual
from surelane_operator.doctor.queue import versions
from surelane_operator.reads.events import Reads
from surelane_worker import Context, Event, Handlers, Limit


class Shop:
    """Handlers of several deployments, which note what they do."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.fleet: Any = None

    def deployed(self, *versions: str | None, **bounds: Any) -> Handlers:
        """Return the handlers of a deployment that has these versions. ``None`` is the first one, without a name."""
        handlers = Handlers()
        for version in versions:
            given = bounds if version is None else {**bounds, "version": version}
            on: Any = handlers.on("order", backoff="1s", **given)
            on(self._order(version or "1"))
        return handlers

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        """Run a fleet without a worker."""
        async with fleet(Handlers(), workers=0) as self.fleet:
            yield self.fleet

    async def begun(self, handlers: Handlers, events: int = 1, most: int = 3, **payload: object) -> list[Any]:
        """Begin runs with a worker of one deployment, and stop it once they wait."""
        worker = self.fleet.start(handlers)
        found = [await self.fleet.enqueue("order", payload, max_attempts=most) for _ in range(events)]
        for event in found:
            await self.fleet.until(event.suspended)
        await self.fleet.drain(worker)
        return found

    async def go(self, *events: Any) -> None:
        for event in events:
            await self.fleet.signal(event, "go")

    async def waits_as(self, event: Any, kind: str) -> dict[str, Any]:
        """Wait until a live event has a kind, and no worker runs it."""

        async def is_so() -> Any:
            row = await event.row()
            return row if row["kind"] == kind and row["claimed_by"] is None else None

        row: dict[str, Any] = await self.fleet.until(is_so)
        return row

    def _order(self, version: str) -> Any:
        async def order(event: Event, ctx: Context) -> Any:
            def act(what: str) -> str:
                self.log.append(f"{what} {version}")
                return version

            self.log.append(f"began {version} as {event.kind}")
            paid = await ctx.step("pay", act, "paid")
            if event.payload.get("dies") and "died" not in self.log:
                self.log.append("died")
                await self.fleet.die()
            await ctx.wait_for("go", blocking=event.payload.get("blocking", False))
            shipped = await ctx.step("ship", act, "shipped")
            if event.payload.get("fails"):
                raise RuntimeError("no")
            if event.payload.get("anew"):
                return ctx.continue_as_new({**event.payload, "anew": False})
            return [paid, shipped, version]

        return order


@virtual
async def test_one_worker_runs_the_version_that_a_run_began_under_and_new_ones_in_the_greatest() -> None:
    shop = Shop()
    async with shop.open() as f:
        (old,) = await shop.begun(shop.deployed(None))
        f.start(shop.deployed("2", "1"))
        new = await f.enqueue("order")
        await f.until(new.suspended)
        await shop.go(old, new)
        assert await old.result() == ["1", "1", "1"]
        assert await new.result() == ["2", "2", "2"]
        assert [line for line in shop.log if line.startswith("paid")] == ["paid 1", "paid 2"]
        await f.drain()
        f.start(shop.deployed("2", "10"))
        new = await f.enqueue("order")
        await shop.go(new)
        assert await new.result() == ["10", "10", "10"]


@virtual
async def test_run_that_its_worker_died_in_stays_with_its_version() -> None:
    shop = Shop()
    async with shop.open() as f:
        f.start(shop.deployed("2"))
        f.handlers = shop.deployed("1")  # of the worker after the death
        event = await f.enqueue("order", {"dies": True})
        await shop.waits_as(event, "order@2")
        f.start(shop.deployed("2"))
        await shop.go(event)
        assert await event.result() == ["2", "2", "2"]
        assert shop.log.count("paid 2") == 1


@virtual
async def test_rolling_deployment_ends_each_run_in_its_version_and_passes_none_to_and_fro() -> None:
    shop = Shop()
    async with shop.open() as f:
        old = await shop.begun(shop.deployed(None), 5)
        new = await shop.begun(shop.deployed("1", "2"), 5)
        f.start(shop.deployed(None))
        f.start(shop.deployed("1", "2"))
        later = [await f.enqueue("order") for _ in range(5)]
        await shop.go(*old, *new, *later)
        assert [await event.result() for event in old] == [["1", "1", "1"]] * 5
        assert [await event.result() for event in new] == [["2", "2", "2"]] * 5
        for event in later:
            assert len(set(await event.result())) == 1
        ((claims,),) = await f.sql("select max(cardinality(claimed)) from agent.event_hist")
        assert claims <= 3  # begin, pass on once, end
        done = Counter(line.split()[0] for line in shop.log)
        assert (done["paid"], done["shipped"]) == (15, 15)


@virtual
async def test_killed_workers_lose_no_run_on_its_way_to_its_version() -> None:
    shop = Shop()
    async with shop.open() as f:
        old = await shop.begun(shop.deployed("1"), 8, most=9)
        await shop.go(*old)
        passed = "select count(*) from agent.event where kind = 'order@1' or cardinality(claimed) > $1"
        for deaths in range(1, 4):
            worker = f.start(shop.deployed("2"), SURELANE_SESSION_GRACE="100ms")
            while (await f.sql(passed, deaths))[0][0] == 0:
                await f.sleep(0.005)
            await f.kill(worker)
        f.start(shop.deployed("1"))
        f.start(shop.deployed("2"))
        assert [await event.result() for event in old] == [["1", "1", "1"]] * 8
        assert (shop.log.count("paid 1"), shop.log.count("shipped 1")) == (8, 8)
        assert (await f.sql("select max(attempts) from agent.event_hist"))[0][0] <= 4


@virtual
async def test_old_worker_without_a_version_gets_its_runs_while_it_lives() -> None:
    shop = Shop()
    async with shop.open() as f:
        old = await shop.begun(shop.deployed(None), 3)
        f.start(shop.deployed("2"))
        f.start(shop.deployed(None))
        await shop.go(*old)
        assert [await event.result() for event in old] == [["1", "1", "1"]] * 3


@virtual
async def test_failed_run_of_an_old_version_has_its_hook_and_runs_again_in_its_version() -> None:
    shop = Shop()
    both = shop.deployed("1", "2")

    @both.on_failure("order")
    async def failed(event: Event, _: Context) -> None:
        shop.log.append(f"hook for {event.kind}")

    async with shop.open() as f:
        (old,) = await shop.begun(shop.deployed(None), fails=True)
        second = f.start(shop.deployed("2"))
        await shop.go(old)
        assert (await shop.waits_as(old, "order@1"))["attempts"] == 0, "it waits for its version"
        await f.drain(second)
        f.start(both)
        assert (await f.until(old.ended))["outcome"] == "failed"
        assert shop.log[:4] == ["began 1 as order", "paid 1", "began 1 as order", "shipped 1"]
        await f.until(lambda: "hook for order" in shop.log)
        await f.sql("select agent.rerun_events($1)", [old.id])
        await f.until(old.ended)
        again = await f.rerun(old, "ship", {})
        assert await again.result() == ["1", "1", "1"]
        anew = await f.rerun(again)
        await shop.go(anew)
        assert await anew.result() == ["2", "2", "2"]
        assert "began 2 as order@1" not in shop.log


@virtual
async def test_successor_of_a_run_begins_in_the_newest_version() -> None:
    shop = Shop()
    async with shop.open() as f:
        (old,) = await shop.begun(shop.deployed(None), anew=True)
        f.start(shop.deployed("2"))
        await shop.go(old)
        await shop.waits_as(old, "order@1")
        first = f.start(shop.deployed("1"))
        await old.result()
        await f.drain(first)
        ((identity, kind),) = await f.sql("select id, kind from agent.event")
        assert kind == "order"
        successor = await f.stored(identity)
        await shop.go(successor)
        assert len(set(await successor.result())) == 1


@virtual
async def test_child_of_an_old_version_tells_its_parent() -> None:
    shop = Shop()
    second = shop.deployed("2")

    @second.on("parent")
    async def parent(_: Event, ctx: Context) -> Any:
        return await ctx.run("order", {})

    async with shop.open() as f:
        worker = f.start(second)
        event = await f.enqueue("parent")
        (child,) = await f.until(event.children)
        await f.until(child.suspended)
        await f.drain(worker)
        f.start(shop.deployed("1"))
        await shop.go(child)
        await shop.waits_as(child, "order@2")
        f.start(second)
        assert await event.result() == ["2", "2", "2"]


@virtual
async def test_limited_run_is_passed_to_its_version() -> None:
    shop = Shop()
    async with shop.open() as f:
        old = await shop.begun(shop.deployed("1", limit=Limit(1)), 3)
        f.start(shop.deployed("2", limit=Limit(1)))
        new = await f.enqueue("order")
        await shop.go(*old, new)
        assert await new.result() == ["2", "2", "2"]
        for event in old:
            await shop.waits_as(event, "order@1")
        f.start(shop.deployed("1", limit=Limit(1)))
        assert [await event.result() for event in old] == [["1", "1", "1"]] * 3


@virtual
async def test_run_keeps_its_place_in_its_group() -> None:
    shop = Shop()
    async with shop.open() as f:
        first = f.start(shop.deployed("1"))
        old = await f.enqueue("order", {"blocking": True}, group_key="thread")
        await f.until(old.suspended)
        await f.drain(first)
        f.start(shop.deployed("2"))
        f.start(shop.deployed("1"))
        later = await f.enqueue("order", group_key="thread")
        await shop.go(later, old)
        assert await old.result() == ["1", "1", "1"]
        await later.result()
        paid = [nth for nth, line in enumerate(shop.log) if line.startswith("paid")]
        assert len(paid) == 2
        assert shop.log.index("shipped 1") < paid[1]


@virtual
async def test_doctor_says_how_many_runs_need_which_version() -> None:
    shop = Shop()
    async with shop.open() as f:
        await shop.begun(shop.deployed("1"), 3)
        await shop.begun(shop.deployed("2"), 2)
        f.start(shop.deployed("2"))
        await f.enqueue("order", run_in="10m")
        await f.sleep("1s")
        found = [(each.level, each.found) for each in await versions(Reads(f.connection))]
        assert found == [("warning", "order: 3 runs of version 1 (no worker), 2 of version 2")]


# --- Changed code without a version


def changing(log: list[str]) -> Handlers:
    """Return handlers whose code the payload says, by the number of the claim: as if it was changed between two.

    ``a`` is a step, ``~a`` a short sleep, ``?a`` a patch, ``@a`` a child.
    """
    handlers = Handlers()

    async def code(event: Event, ctx: Context) -> list[Any]:
        runs = event.payload["runs"]
        done: list[Any] = []
        for step in runs[min(event.claim, len(runs)) - 1]:
            match step[0], step[1:]:
                case "~", name:
                    await ctx.sleep("1ms", name=name)
                case "?", name:
                    done.append(await ctx.patched(name))
                case "@", name:
                    done.append(await ctx.run(name, {}))
                case _:
                    done.append(await ctx.step(step, log.append, f"{event.id} {step}"))
        if event.claim < len(runs):
            raise RuntimeError("once more")
        return done

    @handlers.on("in-thread", backoff="1ms")
    def in_thread(event: Event, ctx: Context) -> Any:
        return ctx.run(code(event, ctx))

    @handlers.on("leaf")
    async def leaf(_: Event, __: Context) -> str:
        return "leaf"

    handlers.on("code", backoff="1ms")(code)
    return handlers


CHANGES = {
    "renamed": ([["a"], ["b"]], ["a"]),
    "inserted": ([["a", "c"], ["a", "b", "c"]], ["a", "c"]),
    "removed": ([["a", "b", "c"], ["a", "c", "d"]], ["a", "b", "c"]),
    "moved": ([["a", "b"], ["b", "a2"]], ["a", "b"]),
    "sleep inserted": ([["a", "b"], ["a", "~s", "b"]], ["a", "b"]),
    "child renamed": ([["@leaf", "z"], ["@leaf", "z"], ["@other"]], ["z"]),
}
ADDITIONS = {
    "added at the end": [["a"], ["a", "b"]],
    "removed at the end": [["a", "b"], ["a"]],
    "patched": [["a", "~s", "b"], ["a", "~s", "b", "?p", "c"], ["a", "~s", "b", "?p", "c"]],
}
PATCHES: dict[str, tuple[list[list[str]], list[bool]]] = {
    "new run": ([["?p", "a"]], [True]),
    "run that was past it": ([["a"], ["?p", "a"]], [False]),
    "run that was not there yet": ([["a"], ["a", "?p", "b"]], [True]),
    "the same in later attempts": ([["a", "b"], ["a", "?p", "b"], ["a", "?p", "b"]], [False]),
    "the same once it is patched": ([["?p", "a"], ["?p", "a"], ["?p", "a"]], [True]),
    "patch removed": ([["?p", "a"], ["a"]], []),
    "asked twice": ([["a", "~s"], ["?p", "a", "~s"]], [False]),
}


@pytest.mark.parametrize("kind", ["code", "in-thread"])
@virtual
async def test_changed_step_is_refused_before_it_runs_unless_it_is_behind_what_is_stored(kind: str) -> None:
    log: list[str] = []
    async with fleet(changing(log)) as f:
        changes = {
            what: (await f.enqueue(kind, {"runs": runs}, max_attempts=2), ran)
            for what, (runs, ran) in CHANGES.items()
        }
        additions = [await f.enqueue(kind, {"runs": runs}, max_attempts=9) for runs in ADDITIONS.values()]
        for what, (event, ran) in changes.items():
            error = (await event.errors())[-1]
            assert error.startswith("StepMismatchError"), what
            assert "nothing was repeated" in error, what
            assert (await event.row())["outcome"] == "failed"
            assert [line.split()[1] for line in log if line.startswith(f"{event.id} ")] == ran, what
        for event in additions:
            await event.result()
        assert len(log) == len(set(log)), "a step ran twice"


@virtual
async def test_patch_is_for_runs_that_were_not_past_it() -> None:
    async with fleet(changing([])) as f:
        events = {
            what: (await f.enqueue("code", {"runs": runs}, max_attempts=9), answers)
            for what, (runs, answers) in PATCHES.items()
        }
        for what, (event, answers) in events.items():
            assert [each for each in await event.result() if isinstance(each, bool)] == answers, what


@virtual
async def test_tasks_and_timeouts_are_no_change() -> None:  # noqa: C901 - two handlers
    handlers = Handlers()

    @handlers.on("racing", backoff="1ms")
    async def racing(event: Event, ctx: Context) -> Any:
        """Run two tasks and a step of the handler itself. Each task is first in one attempt."""
        late = asyncio.Event()

        async def one() -> None:
            if event.claim > 1:
                await late.wait()
            await ctx.step("one", lambda: None)

        async def other() -> None:
            if event.claim > 1:
                await ctx.step("other", lambda: None)

        tasks = [asyncio.create_task(one()), asyncio.create_task(other())]
        if event.claim == 1:
            await tasks[0]
            raise RuntimeError("once more")
        await ctx.step("own", lambda: None)  # while what "one" stored is not asked for
        late.set()
        await asyncio.gather(*tasks)
        return "done"

    @handlers.on("timed", backoff="1ms")
    async def timed(event: Event, ctx: Context) -> Any:
        """Give a step up in the first attempt, by a timeout of the handler's own."""
        try:
            async with asyncio.timeout(0.05):
                await ctx.step("slow", asyncio.Event().wait)
        except TimeoutError:
            pass
        await ctx.step("after", lambda: None)
        if event.claim == 1:
            raise RuntimeError("once more")
        return "done"

    async with fleet(handlers) as f:
        for kind in ("racing", "timed"):
            assert await (await f.enqueue(kind, max_attempts=2)).result() == "done"
