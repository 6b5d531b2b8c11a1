"""A worker that ends loses no event and repeats no attempt needlessly."""

import asyncio
import json
import signal
from itertools import pairwise

import aiohttp
import asyncpg

from surelane.calls import Connection
from surelane_service.lifecycle import EXIT_FORCED
from tests.processes import until
from tests.system.worker import claimed, ended, enqueue, live, worker


async def test_running_handler_finishes(database: str, connection: Connection) -> None:
    async with worker(database) as running:
        identity = await enqueue(connection, "sleep", {"seconds": 2})
        await claimed(connection, identity)
        assert await running.child.stop(signal.SIGTERM, 60) == 0
    row = await ended(connection, identity)
    assert (row["outcome"], row["attempts"]) == ("completed", 1)


async def test_handler_that_takes_too_long_is_released_unspent(database: str, connection: Connection) -> None:
    async with worker(database, SURELANE_DRAIN_TIMEOUT="300ms"):
        identity = await enqueue(connection, "sleep", {"seconds": 60})
        await claimed(connection, identity)
    row = await live(connection, identity)
    assert (row["attempts"], row["claimed_by"], json.loads(row["errors"])) == (0, None, [])


async def test_synchronous_handler_that_takes_too_long_keeps_no_process_alive(
    database: str, connection: Connection
) -> None:
    async with worker(database, SURELANE_DRAIN_TIMEOUT="300ms") as running:
        identity = await enqueue(connection, "sleep-in-a-thread", {"seconds": 60})
        await claimed(connection, identity)
        assert await running.child.stop(signal.SIGTERM, 30) == 0
    assert (await live(connection, identity))["attempts"] == 0


async def test_rest_of_a_group_is_released_after_the_running_event(
    database: str, connection: Connection
) -> None:
    async with worker(database):
        async with connection.transaction():
            first, *rest = [
                await enqueue(connection, "sleep", {"seconds": 3}, group_key="T:C:1") for _ in range(4)
            ]
        await claimed(connection, first)
    assert (await ended(connection, first))["outcome"] == "completed"
    rows = [await live(connection, identity) for identity in rest]
    assert [(row["attempts"], row["claimed_by"]) for row in rows] == [(0, None)] * 3


async def test_second_signal_ends_the_process_at_once(database: str, connection: Connection) -> None:
    """The drain would take thirty seconds."""
    async with worker(database) as running:
        await claimed(connection, await enqueue(connection, "sleep", {"seconds": 60}))
        running.process.send_signal(signal.SIGTERM)
        await until(lambda: any("draining" in line for line in running.output), what="the drain")
        assert await running.child.stop(signal.SIGTERM, 15) == EXIT_FORCED


async def test_draining_worker_is_not_ready_and_claims_nothing(database: str, connection: Connection) -> None:
    async with worker(database) as running:
        await claimed(connection, await enqueue(connection, "sleep", {"seconds": 3}))
        running.process.send_signal(signal.SIGTERM)
        await until(lambda: any("draining" in line for line in running.output), what="the drain")
        async with aiohttp.ClientSession() as session, session.get(running.private_url + "/readyz") as probe:
            assert probe.status == 503
        late = await enqueue(connection, "echo")
        assert await running.child.stop(signal.SIGCONT, 60) == 0
    assert (await live(connection, late))["attempts"] == 0


async def test_rolling_restarts_lose_nothing_and_repeat_nothing(
    database: str, connection: Connection
) -> None:
    """Three replicas restart twice each under a load of grouped and ungrouped events."""
    stored: list[int] = []

    async def load(stop: asyncio.Event) -> None:
        inserter = await asyncpg.connect(database)
        try:
            while not stop.is_set():
                for number in range(20):
                    group = f"T:C:{number}" if number < 10 else None
                    stored.append(await enqueue(inserter, "short", group_key=group))
                await asyncio.sleep(0.02)
        finally:
            await inserter.close()

    async def replica() -> None:
        for _ in range(3):
            async with worker(database, SURELANE_CONCURRENCY="5"):
                goal = len(stored) + 150
                await until(lambda: len(stored) >= goal, within=60, what=f"{goal} stored jobs")  # noqa: B023

    stop = asyncio.Event()
    loading = asyncio.create_task(load(stop))
    await asyncio.gather(*(replica() for _ in range(3)))
    stop.set()
    await loading
    async with worker(database):
        rows = [await ended(connection, identity, within=60) for identity in stored]
    assert {(row["outcome"], row["attempts"]) for row in rows} == {("completed", 1)}
    await _assert_in_order(connection)


async def _assert_in_order(connection: Connection) -> None:
    """Check that the events of each group ran one after another, in the order in which they happened."""
    for number in range(10):
        rows = await connection.fetch(
            "select result from agent.event_hist where group_key = $1 order by event_ts, id", f"T:C:{number}"
        )
        spans = [json.loads(row["result"]) for row in rows]
        assert all(one["ended"] <= next_one["began"] for one, next_one in pairwise(spans))
