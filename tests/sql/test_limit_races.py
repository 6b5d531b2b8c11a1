"""Runs of a limited kind whose leases end while something has them locked; each parked event that moves is noted."""

import asyncio
import re
from datetime import timedelta

import pytest

from surelane.calls import Connection
from tests.sql import queue_steps as do
from tests.sql.conftest import Connect
from tests.sql.queue_steps import Row, pair

LEASE = timedelta(seconds=30)

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
    """Store two events of a kind whose limit is one at once. Claim one."""
    await queue.execute("select agent.declare_limits('w', array['job'], $1)", '{"job": {"concurrency": 1}}')
    for _ in range(2):
        await do.enqueue(queue)
    (row,) = await do.claim(queue, lease=LEASE)
    return row


async def test_a_heartbeat_that_waits_renews_no_lost_run(queue: Connection, connect: Connect) -> None:
    lapsed = await one_runs_and_one_waits(queue)
    beats = await connect()
    await beats.execute(f"begin; {SLOW}")
    try:
        await queue.execute("select pg_advisory_lock(20)")
        beat = asyncio.create_task(do.extend(beats, pair(lapsed), lease=LEASE))
        await do.waits_for_lock(queue, beats)
        await do.advance(queue, 1.1 * LEASE)
        (row,) = await do.claim(queue, lease=LEASE)
        await queue.execute("select pg_advisory_unlock(20)")
        assert await beat == ["stale" if row["id"] == lapsed["id"] else "busy"]
    finally:
        await queue.execute("select pg_advisory_unlock_all()")
        await beats.execute("rollback")


@pytest.mark.parametrize("late", [1.1, 20])
async def test_a_run_that_is_renewed_has_a_slot(queue: Connection, connect: Connect, late: float) -> None:
    """Also where the heartbeat commits minutes after the lease ended."""
    renewed = await one_runs_and_one_waits(queue)
    beats = await connect()
    async with beats.transaction():
        assert await do.extend(beats, pair(renewed), lease=100 * LEASE) == ["done"]
        await do.advance(queue, late * LEASE)
        # The claim does not see the new lease yet.
        assert await do.claim(queue) == []
    assert await do.claim(queue) == []
    assert await do.complete(queue, pair(renewed)) == ["done"]
    await do.advance(queue, LEASE)
    assert len(await do.claim(queue)) == 1


async def test_a_heartbeat_that_is_rolled_back_keeps_no_slot(queue: Connection, connect: Connect) -> None:
    lapsed = await one_runs_and_one_waits(queue)
    beats = await connect()
    await beats.execute("begin")
    assert await do.extend(beats, pair(lapsed), lease=100 * LEASE) == ["done"]
    await do.advance(queue, 1.1 * LEASE)
    assert await do.claim(queue) == []
    await beats.execute("rollback")
    await do.advance(queue, timedelta(seconds=2))
    assert len(await do.claim(queue)) == 1


async def test_a_foreign_lock_on_a_lapsed_run_keeps_no_slot(queue: Connection, connect: Connect) -> None:
    """A foreign transaction that stays open does not stop the kind."""
    lapsed = await one_runs_and_one_waits(queue)
    async with do.locked(await connect(), lapsed["id"]):
        await do.advance(queue, 1.1 * LEASE)
        (row,) = await do.claim(queue)
        assert row["id"] != lapsed["id"]


# Each function that moves a parked event notes it for claims. No trigger does that: it would slow down all claims.
# In each transaction of these tests, the fixture's trigger parked_is_noted checks what a function does.
# The following tests check that no function escapes for want of a test.
MOVES = re.compile(r"update agent\.event\b(?: as e)?\s+set\b((?:(?!\breturning\b|;).)*)", re.DOTALL)
MOVED = re.compile(r"\b(vt|lane|claimed_by|head) = (?!false)")
CLAIMS = {"mark_claimed", "claim_events"}
"""They record the keys that they look at, in ``agent.hold_key``."""
MEMBERS = {"fence_groups"}
"""Its events are members, or become members: no claim looks at them before they become heads."""
HELD = {"hold_workspace"}
"""``agent.free_workspace`` notes its events, once claims may look at them."""


async def test_each_function_that_moves_events_notes_parked_ones(queue: Connection) -> None:
    rows = await queue.fetch("select proname, prosrc from pg_proc where pronamespace = 'agent'::regnamespace")
    moving = {
        row["proname"]: row["prosrc"]
        for row in rows
        if any(MOVED.search(update) for update in MOVES.findall(row["prosrc"]))
    }
    assert {"promote", "move_event", "return_events", "end_claims", "extend_leases"} < set(moving)
    forgets = {name for name, source in moving.items() if "agent.note_parked(" not in source}
    assert forgets == CLAIMS | MEMBERS | HELD
