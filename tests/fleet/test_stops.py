"""Workers that are stopped, or drained by an operator: no event is lost, none is repeated."""

import asyncio
from typing import Any

from surelane.testing import fleet, virtual
from surelane_operator.changes import Changes
from surelane_worker import Context, Event, Handlers


class Running:
    """Handlers, and what they did."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, str | None, int]] = []
        self.handlers = Handlers()
        for kind in ("sleep", "short"):
            self.handlers.on(kind)(getattr(self, kind))

    async def sleep(self, event: Event, _: Context) -> None:
        await asyncio.sleep(event.payload["seconds"])

    async def short(self, event: Event, _: Context) -> None:
        self.spans.append(("begin", event.group_key, event.id))
        await asyncio.sleep(0.03)
        self.spans.append(("end", event.group_key, event.id))


async def begun(f: Any, event: Any) -> Any:
    """Wait until a worker holds an event, and return it."""
    return await f.until(lambda: next((each for each in f.workers if each.runs(event)), None))


@virtual
async def test_a_worker_that_stops_ends_what_runs_in_time_and_releases_the_rest_unspent() -> None:
    running = Running()
    async with fleet(running.handlers, workers=0, settings={"SURELANE_DRAIN_TIMEOUT": "20s"}) as f:
        quick = [await f.enqueue("sleep", {"seconds": 10}, group_key="T:C:1") for _ in range(3)]
        long = await f.enqueue("sleep", {"seconds": 600})
        f.start()
        await begun(f, quick[0])
        await begun(f, long)
        began, draining = f.now, asyncio.create_task(f.drain())
        await f.sleep(1)
        late = await f.enqueue("sleep", {"seconds": 0})
        await draining
        assert 19 < f.now - began < 22
        row = await f.until(quick[0].ended)
        assert (row["outcome"], row["attempts"]) == ("completed", 1)
        for event in (*quick[1:], long, late):
            row = await event.row()
            assert (row["attempts"], row["claimed_by"], row["errors"]) == (0, None, [])
        assert await f.sql("select from agent.worker") == [], "it is off the list"


@virtual
async def test_rolling_restarts_lose_nothing_and_repeat_nothing() -> None:
    """Three replicas restart under a load of grouped and ungrouped events."""
    running = Running()
    async with fleet(running.handlers, workers=3, settings={"SURELANE_CONCURRENCY": "5"}) as f:

        async def load() -> None:
            for number in range(60):
                group = f"T:C:{number % 10}" if number % 2 else None
                await f.enqueue("short", group_key=group)
                await f.sleep(0.05)

        loading = asyncio.create_task(load())
        for _ in range(3):
            await f.sleep(0.8)
            await f.drain()
            f.start()
        await loading
        await f.until(lambda: len(running.spans) == 120)
        await f.sleep(5)
        rows = await f.sql("select outcome, attempts, count(*) from agent.event_hist group by 1, 2")
        assert [tuple(row) for row in rows] == [("completed", 1, 60)]
        for group in {group for _, group, _ in running.spans if group}:
            mine = [(what, each) for what, key, each in running.spans if key == group]
            ids = sorted({each for _, each in mine})
            assert mine == [(what, each) for each in ids for what in ("begin", "end")]


@virtual
async def test_an_operator_drains_a_worker_which_claims_nothing_until_it_is_resumed() -> None:
    running = Running()
    async with fleet(running.handlers) as f:
        operations = Changes(f.connection)

        async def state() -> str:
            (listed,) = await operations.workers()
            return str(listed["state"])

        first = await f.enqueue("sleep", {"seconds": 20})
        await begun(f, first)
        drain = "select agent.drain_worker($1, $2)"
        assert (await f.sql(drain, "worker-1", True))[0][0]
        assert await state() == "drained"
        await first.result()
        second = await f.enqueue("sleep", {"seconds": 0})
        await f.sleep(20)
        assert await second.why() == "no_worker"
        assert (await second.row())["claimed_by"] is None
        assert (await f.sql(drain, "worker-1", False))[0][0]
        await second.result()
        assert await state() == "alive"
        assert not (await f.sql(drain, "none", True))[0][0]
