"""A continuation runs once, even if many children end at the same moment or an operator ends them."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from surelane.calls import Connection
from surelane.jobs import Continuation, Job
from surelane.queue import Queue
from tests.sql.conftest import Connect
from tests.sql.queue_steps import Row, all_done, claim, complete, continue_with, fail, pair, settled, sweep


def jobs(count: int, **fields: Any) -> list[Job]:
    return [Job("child", {"n": number}, **fields) for number in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 5])
async def test_last_children_race_for_a_continuation(queue: Connection, connect: Connect, batch: int) -> None:
    """Several batches settle children of the same two continuations at the same moment, in any order."""
    client = Queue(queue)
    both = [await client.fan_out(jobs(20), Continuation("then")) for _ in range(2)]
    rows = await claim(queue, "child")
    workers = [await connect() for _ in range(4)]

    async def settle(worker: Connection, mine: Sequence[Row]) -> None:
        for start in range(0, len(mine), batch):
            await settled(complete, worker, *map(pair, mine[start : start + batch]))

    # Every other worker goes backwards, the worst order for locks.
    shares = [rows[number::4][:: -1 if number % 2 else 1] for number in range(4)]
    await all_done(*(settle(worker, mine) for worker, mine in zip(workers, shares, strict=True)))
    then = await claim(queue, "then")
    assert sorted(row["id"] for row in then) == sorted(both)
    assert await queue.fetchval("select sum(waits_for) from agent.event where kind = 'then'") == 0


@pytest.mark.slow
async def test_children_fail_many_continuations_without_deadlock(queue: Connection, connect: Connect) -> None:
    client = Queue(queue)
    for _ in range(10):
        outer = await client.fan_out([Job("plan"), *jobs(4)], Continuation("outer", fails_with_children=True))
        assert outer
    plans = await claim(queue, "plan")
    for plan in plans:
        await continue_with(queue, pair(plan), jobs(4), Continuation("inner", fails_with_children=True))
    rows = await claim(queue, "child")
    assert len(rows) == 80
    workers = [await connect() for _ in range(4)]
    shares = [map(pair, rows[number::4]) for number in range(4)]
    await all_done(
        *(settled(fail, each, *share, final=True) for each, share in zip(workers, shares, strict=True))
    )
    outcomes = await queue.fetch("select kind || ' ' || outcome, count(*) from agent.event_hist group by 1")
    counts = {"child failed": 80, "inner failed": 10, "outer failed": 10, "plan completed": 10}
    assert dict(map(tuple, outcomes)) == counts


@pytest.mark.slow
async def test_ten_thousand_children_are_started_and_counted_off(queue: Connection) -> None:
    identity = await Queue(queue).fan_out(jobs(10_000), Continuation("then"))
    while rows := await claim(queue, "child", limit=500):
        assert set(await complete(queue, *map(pair, rows))) == {"done"}
    (row,) = await claim(queue, "then")
    assert row["id"] == identity
    assert len(await Queue(queue).children(identity)) == 10_000


async def test_children_deleted_by_hand_are_counted_off_by_the_sweep(queue: Connection) -> None:
    identity = await Queue(queue).fan_out(jobs(3), Continuation("then"))
    await queue.execute("delete from agent.event where kind = 'child' and id % 3 < 2")
    await complete(queue, *map(pair, await claim(queue, "child")))
    await sweep(queue)
    assert [row["id"] for row in await claim(queue, "then")] == [identity]


async def test_the_sweep_does_not_hold_up_children_that_end(queue: Connection, connect: Connect) -> None:
    """It locks only continuations that it must correct."""
    await Queue(queue).fan_out(jobs(2), Continuation("then"))
    rows = await claim(queue, "child")
    sweeping = await connect()
    async with sweeping.transaction():
        await sweeping.execute("select agent.sweep_waiting()")
        async with asyncio.timeout(60):
            assert await complete(queue, *map(pair, rows)) == ["done", "done"]
