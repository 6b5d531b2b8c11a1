"""Workers that are stopped, or drained by an operator: no event is lost, none is repeated."""

import asyncio
from typing import Any

from surelane.testing import fleet, virtual
from surelane_operator.changes import Changes
from surelane_worker import Context, Event, Handlers

handlers = Handlers()


@handlers.on("sleep")
async def sleep(event: Event, _: Context) -> None:
    await asyncio.sleep(event.payload["seconds"])


async def begun(f: Any, event: Any) -> Any:
    """Wait until a worker holds an event, and return it."""
    return await f.until(lambda: next((each for each in f.workers if each.runs(event)), None))


@virtual
async def test_a_worker_that_stops_ends_what_runs_in_time_and_releases_the_rest_unspent() -> None:
    async with fleet(handlers, workers=0, settings={"SURELANE_DRAIN_TIMEOUT": "20s"}) as f:
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
async def test_an_operator_drains_a_worker_which_claims_nothing_until_it_is_resumed() -> None:
    async with fleet(handlers) as f:
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
