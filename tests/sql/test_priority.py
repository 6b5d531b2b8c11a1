"""Priorities: which events a claim takes first, and what keeps the others from starving."""

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from surelane.calls import Connection
from surelane.queue import Queue
from surelane_service.engine import LANES, Engine
from tests.sql.queue_steps import claim, claim_one, complete, enqueue, fail, only_row, pair, release, snooze

PRIORITIES = "select array_agg(agent.priority_of(lane)) from agent.event where id = any($1)"


async def priority_of(queue: Connection, identity: int) -> tuple[int, int]:
    """The priority of an event, and how many lanes of its band there are."""
    bands = "select agent.priority_of(lane), agent.band_of(lane) from agent.event where id = $1"
    priority, band = await only_row(queue, bands, identity)
    return priority, band


async def test_a_claim_takes_events_by_priority(queue: Connection) -> None:
    """Those of the first priority come before older ones of the others; one claim in eight may go another way."""
    for priority in (3, 2, 1, 0):
        await queue.execute(
            "select agent.enqueue('job', '{}', $1::int4) from generate_series(1, 96)", priority
        )
    taken: Counter[int] = Counter()
    for _ in range(12):
        rows = await claim(queue, limit=8)
        taken.update(await queue.fetchval(PRIORITIES, [row["id"] for row in rows]))
    assert taken.total() == 96
    assert taken[0] >= 48


async def test_a_queue_without_priorities_costs_sixteen_lanes_a_kind(queue: Connection) -> None:
    await enqueue(queue)
    await enqueue(queue, priority=1)
    assert await queue.fetchval("select count(*) from agent.band") == 0
    peek = await Engine(queue).peek_events(["job"], timedelta(hours=1))
    assert len(peek.vts) == LANES
    await enqueue(queue, priority=0)
    await enqueue(queue, priority=0)
    assert [tuple(row) for row in await queue.fetch("select * from agent.band")] == [
        ("job", 1, None, await queue.fetchval("select timestamptz '-infinity'"))
    ]
    peek = await Engine(queue).peek_events(["other", "job"], timedelta(hours=1))
    assert len(peek.vts) == 2 * 20
    assert sum(vt is not None for vt in peek.vts[2 * LANES :]) in {1, 2}


@pytest.mark.parametrize("priority", [0, 3])
async def test_an_event_keeps_its_priority(queue: Connection, priority: int) -> None:
    identity = await enqueue(queue, priority=priority, item_key="k", max_attempts=9)
    band = max(priority, 1)
    for settle in (
        lambda row: release(queue, pair(row)),
        lambda row: fail(queue, pair(row), retry_in=timedelta()),
        lambda row: snooze(queue, pair(row), timedelta()),
    ):
        (row,) = await claim(queue)
        await settle(row)
        assert await priority_of(queue, identity) == (priority, band)
    await queue.execute("select agent.reschedule_event('k', now())")
    await queue.execute("select agent.pause_kind('job')")
    assert await claim(queue) == []
    await queue.execute("select agent.resume_kind('job')")
    assert await queue.fetchval("select priority from agent.job where id = $1", identity) == priority
    (row,) = await claim(queue)
    assert await complete(queue, pair(row)) == ["done"]
    assert await queue.fetchval("select priority from agent.job where id = $1", identity) == priority
    await queue.execute("select agent.rerun_events(array[$1::int8])", identity)
    assert await priority_of(queue, identity) == (priority, band)
    assert await claim_one(queue) is not None


@pytest.mark.parametrize(("mode", "priority"), [("skip", 3), ("earliest", 3), ("replace", 0)])
async def test_a_replaced_job_takes_a_new_priority(queue: Connection, mode: str, priority: int) -> None:
    first = await enqueue(queue, dedupe_key="d", priority=3)
    assert await enqueue(queue, dedupe_key="d", priority=0, on_duplicate=mode) == first
    assert await priority_of(queue, first) == (priority, max(priority, 1))
    assert [row["id"] for row in await claim(queue)] == [first]


async def test_every_way_in_takes_a_priority(queue: Connection) -> None:
    """A batch, a fan-out's children, its continuation and a schedule."""
    await queue.execute(
        'select agent.enqueue_jobs(\'[{"kind": "a", "priority": 0}, {"kind": "b"}, {"kind": "c", "priority": null}]\')'
    )
    await queue.execute(
        'select agent.fan_out(\'[{"kind": "d", "priority": 3}]\', \'{"kind": "e", "priority": 2}\')'
    )
    engine = Engine(queue)
    due = await queue.fetchval("select agent.clock() - interval '1 minute'")
    await engine.set_cron("tick", kind="f", schedule="* * * * *", next_at=due, priority=2)
    assert await engine.fire_cron("tick", due, [due], due + timedelta(days=1)) == 1
    await Queue(queue).enqueue("g", priority=3)
    found = await queue.fetch(
        "select kind, agent.priority_of(lane), agent.band_of(lane) from agent.event order by kind"
    )
    assert [tuple(row) for row in found] == [
        ("a", 0, 1), ("b", 1, 0), ("c", 1, 0), ("d", 3, 3), ("e", 2, 2), ("f", 2, 2), ("g", 3, 3)
    ]  # fmt: skip


async def test_the_order_of_a_group_is_its_own(queue: Connection) -> None:
    """A member's priority, also a new one, does not move it ahead. It counts once the member is the head."""
    first = await enqueue(queue, group_key="g", priority=3)
    second = await enqueue(queue, group_key="g", priority=0, dedupe_key="d")
    await enqueue(queue, group_key="g", dedupe_key="d", priority=2, on_duplicate="replace")
    assert [await priority_of(queue, each) for each in (first, second)] == [(3, 3), (2, 2)]
    assert [row["id"] for row in await claim(queue)] == [first, second]
    await complete(queue, (first, 1))
    assert await priority_of(queue, second) == (2, 2)


async def test_each_band_comes_first_in_some_claims(queue: Connection) -> None:
    """However much the others hold: in one of eight claims the bands are in random order.

    Each of four bands is first in one of 32 claims at least. That none of 500 took an event of the last priority
    has a chance of one in ten million.
    """
    await queue.execute(
        "select agent.enqueue('job', '{}', p) from generate_series(0, 3) as p, generate_series(1, 520)"
    )
    taken: Counter[int] = Counter()
    for _ in range(500):
        row = await only_row(queue, "select agent.priority_of(lane) as priority from agent.claim_event()")
        taken[row["priority"]] += 1
    assert set(taken) == {0, 1, 2, 3}
    assert taken[0] > 380
    assert all(taken[priority] < 60 for priority in (1, 2, 3))


async def test_an_open_transaction_hides_no_band(queue: Connection, other: Connection) -> None:
    """The first event of a priority is claimed though another transaction, still open, also has one."""
    async with other.transaction():
        await enqueue(other, priority=0)
        async with asyncio.timeout(60):
            identity = await enqueue(queue, priority=0)
        assert [row["id"] for row in await claim(queue)] == [identity]
    assert len(await claim(queue)) == 1
    assert await queue.fetchval("select count(*) from agent.band") == 2
    await queue.execute("select agent.sweep_events()")
    assert await queue.fetchval("select count(*) from agent.band") == 1, "the surplus is gone"
    # An owner may have copied rows with their lanes: a sweep finds a band that is not recorded.
    await enqueue(queue, priority=3)
    await queue.execute("delete from agent.band")
    assert await claim(queue) == []
    await queue.execute("select agent.sweep_events()")
    assert len(await claim(queue)) == 1


async def test_figures_count_every_band(queue: Connection) -> None:
    await queue.execute(
        "select agent.enqueue('job', '{}', p) from generate_series(0, 3) as p, generate_series(1, 10)"
    )
    assert await queue.fetchval("select pending from agent.count_heads('job', agent.clock())") == 40
    await queue.execute(
        "update agent.event set vt = vt - interval '2 hours', enqueued_at = enqueued_at - interval '2 hours'"
    )
    assert await queue.fetchval("select agent.sweep_by_age('1 hour', null, 1000)") == 40
