"""Limits under contention: many claimants, inserters and a long transaction, on real connections."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from random import Random

import asyncpg
import pytest

from surelane.calls import Connection
from tests.sql.conftest import Connect
from tests.sql.queue_steps import (
    Pair,
    Row,
    advance,
    all_done,
    claim,
    complete,
    enqueue,
    extend,
    fail,
    locked,
    pair,
    release,
    waits_for_lock,
)

Settle = Callable[[Connection, Pair], Awaitable[list[str]]]
SETTLES: dict[str, Settle] = {"c": complete, "f": fail, "r": release}

WORKERS = 6
JOBS = 400
KEYS = 5
LEASE = timedelta(seconds=30)
AT_ONCE, BEGUN, PERIOD = 3, 40, 0.5


class Floor:
    """What all claimants have seen."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.completed = 0
        self.most = 0

    def take(self, rows: list[Row]) -> None:
        for row in rows:
            key = json.loads(row["event"])["team_id"]
            self.running[key] += 1
            self.most = max(self.most, self.running[key])
        assert self.most <= AT_ONCE, "more at once than the limit"


async def work(queue: Connection, floor: Floor, chance: Random) -> None:
    """Claim and settle in every way, until all jobs have completed."""
    while floor.completed < JOBS:
        try:
            rows = await claim(queue, limit=chance.choice([1, 3, 20]), max_attempts=1000)
        except (asyncpg.DeadlockDetectedError, asyncpg.SerializationError):
            continue
        floor.take(rows)
        await asyncio.sleep(chance.random() * 0.005)
        for row in rows:
            how = chance.choice("cccfr")
            # Counted before it is sent: another claim may see it at once.
            floor.running[json.loads(row["event"])["team_id"]] -= 1
            floor.completed += how == "c"
            # Busy: a claim that began before this event was claimed still has its row locked.
            while (answer := await SETTLES[how](queue, pair(row))) == ["busy"]:
                pass
            assert answer == ["done"]
        if not rows:
            await asyncio.sleep(0.002)


@pytest.mark.slow
async def test_claimants_keep_to_the_limit_and_lose_no_event(queue: Connection, connect: Connect) -> None:
    """A transaction that stays open has stored events of every key. Nothing waits for it."""
    limit = {"per": "workspace", "concurrency": AT_ONCE, "rate": BEGUN, "period": PERIOD}
    await queue.execute("select agent.declare_limits('w', array['job'], $1)", json.dumps({"job": limit}))
    await queue.execute("select agent.register_kinds(array['job'])")
    # The maximum of the kind would end what fails often.
    jobs = [
        {"kind": "job", "payload": {"team_id": f"T{nth % KEYS}"}, "max_attempts": 1000} for nth in range(JOBS)
    ]
    foreign, *claimants = [await connect() for _ in range(WORKERS + 1)]
    await foreign.execute("begin")
    await foreign.execute("select agent.enqueue_jobs($1)", json.dumps(jobs[:KEYS]))
    floor = Floor()

    async def insert() -> None:
        for start in range(0, JOBS, 10):
            await queue.execute("select agent.enqueue_jobs($1)", json.dumps(jobs[start : start + 10]))

    try:
        await all_done(insert(), *(work(each, floor, Random(nth)) for nth, each in enumerate(claimants)))
    finally:
        await foreign.execute("rollback")
    assert floor.most == AT_ONCE
    # The database's times: the answers are read later, and not in this order.
    begun = await queue.fetch(
        "select array_agg(extract(epoch from at)::float8 order by at) as moments"
        " from agent.event_hist, unnest(claimed) as at group by event ->> 'team_id'"
    )
    assert len(begun) == KEYS
    for (moments,) in begun:
        for nth in range(len(moments) - BEGUN):
            assert moments[nth + BEGUN] - moments[nth] > PERIOD * 0.5, moments


SLOW = """
alter function agent.hold_claims(int8[], int4[]) rename to hold_claims_soon;
create function agent.hold_claims(_ids int8[], _claims int4[]) returns int8[]
language plpgsql volatile set lock_timeout = 0 as $$
begin
    perform pg_advisory_xact_lock(20), pg_advisory_unlock(20);
    return agent.hold_claims_soon(_ids, _claims);
end
$$;
"""
"""Where heartbeats of one transaction lock their rows late. No other transaction sees it."""


async def one_runs_and_one_waits(queue: Connection) -> Row:
    """Store two events of a kind of which one runs at once. Claim one."""
    await queue.execute("select agent.declare_limits('w', array['job'], $1)", '{"job": {"concurrency": 1}}')
    for _ in range(2):
        await enqueue(queue)
    (row,) = await claim(queue, lease=LEASE)
    return row


async def test_a_heartbeat_that_waits_renews_no_lost_run(queue: Connection, connect: Connect) -> None:
    lapsed = await one_runs_and_one_waits(queue)
    beats = await connect()
    await beats.execute(f"begin; {SLOW}")
    try:
        await queue.execute("select pg_advisory_lock(20)")
        beat = asyncio.create_task(extend(beats, pair(lapsed), lease=LEASE))
        await waits_for_lock(queue, beats)
        await advance(queue, 1.1 * LEASE)
        (row,) = await claim(queue, lease=LEASE)
        await queue.execute("select pg_advisory_unlock(20)")
        assert await beat == ["stale" if row["id"] == lapsed["id"] else "busy"]
    finally:
        await queue.execute("select pg_advisory_unlock_all()")
        await beats.execute("rollback")


@pytest.mark.parametrize("late", [1.1, 20])
async def test_a_run_that_is_being_renewed_has_a_slot(
    queue: Connection, connect: Connect, late: float
) -> None:
    """Also where the heartbeat commits minutes after the lease ended."""
    renewed = await one_runs_and_one_waits(queue)
    beats = await connect()
    async with beats.transaction():
        assert await extend(beats, pair(renewed), lease=100 * LEASE) == ["done"]
        await advance(queue, late * LEASE)
        # The claim does not see the new lease yet.
        assert await claim(queue) == []
    assert await claim(queue) == []
    assert await complete(queue, pair(renewed)) == ["done"]
    await advance(queue, LEASE)
    assert len(await claim(queue)) == 1


async def test_a_heartbeat_that_is_rolled_back_keeps_no_slot(queue: Connection, connect: Connect) -> None:
    lapsed = await one_runs_and_one_waits(queue)
    beats = await connect()
    await beats.execute("begin")
    assert await extend(beats, pair(lapsed), lease=100 * LEASE) == ["done"]
    await advance(queue, 1.1 * LEASE)
    assert await claim(queue) == []
    await beats.execute("rollback")
    await advance(queue, timedelta(seconds=2))
    assert len(await claim(queue)) == 1


async def test_a_foreign_lock_on_a_lapsed_run_keeps_no_slot(queue: Connection, connect: Connect) -> None:
    """A foreign transaction that stays open does not stop the kind."""
    lapsed = await one_runs_and_one_waits(queue)
    async with locked(await connect(), lapsed["id"]):
        await advance(queue, 1.1 * LEASE)
        (row,) = await claim(queue)
        assert row["id"] != lapsed["id"]
