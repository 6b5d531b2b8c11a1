"""An idle worker wakes in time, and sends few statements."""

import asyncio
import signal
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import asyncpg
import pytest

from surelane.calls import Connection
from surelane_worker.claiming.claimer import MARGIN
from tests.databases import as_role
from tests.system.worker import claims, ended, enqueue, worker

RARELY = "1h"
TOO_SOON = 0.05
"""The most seconds by which clocks of two processes on one machine differ, read at different moments."""
LATE = 20.0
"""Seconds that a busy machine may take for a wake-up. Without one the worker sleeps for an hour."""

OURS = "application_name = 'surelane-worker' and datname = current_database()"
PEEKING = f"select exists (select from pg_stat_activity where {OURS} and wait_event = 'PgSleep')"
SLOW_PEEK = """
alter function agent.peek_lanes rename to quick_peek;
create function agent.peek_lanes (_kinds text[], _within interval, _max_attempts int4, _cursors timestamptz[]
, out now_at timestamptz, out vts timestamptz[], out paused text[], out took interval)
language sql volatile security definer
begin atomic
    select now_at, vts, paused, interval '1 s'
    from pg_sleep(30), agent.quick_peek(_kinds, _within, _max_attempts, _cursors);
end
"""
BACKENDS = f"select pid, query_start from pg_stat_activity where {OURS}"


@pytest.fixture
async def insider(database: str) -> AsyncIterator[Connection]:
    """Connect as the worker's role, which may see and end the worker's sessions."""
    connected = await asyncpg.connect(as_role(database, "surelane_worker"))
    yield connected
    await connected.close()


async def idle(connection: Connection) -> None:
    """Wait until the worker is idle and sends no statement for a while."""
    before = None
    while (now := await connection.fetch(BACKENDS)) != before:
        before = now
        await asyncio.sleep(0.7)  # nothing signals that no statement comes


async def test_notification_wakes_long_before_the_poll(
    database: str, connection: Connection, insider: Connection
) -> None:
    async with worker(database, SURELANE_POLL_INTERVAL=RARELY):
        await idle(insider)
        await ended(connection, await enqueue(connection, "echo"))


async def test_scheduled_event_runs_on_time_though_nothing_commits_then(
    database: str, connection: Connection, insider: Connection
) -> None:
    async with worker(database, SURELANE_POLL_INTERVAL=RARELY):
        await idle(insider)
        before = await connection.fetchval("select clock_timestamp()")
        late, soon = (
            await enqueue(connection, "echo", run_in=2.5),
            await enqueue(connection, "echo", run_in=1.5),
        )
        rows = [await ended(connection, identity) for identity in (soon, late)]
    for row, delay in zip(rows, (1.5, 2.5), strict=True):
        # It is due between the two: its time is computed before it is stored.
        assert (row["finished_at"] - before).total_seconds() >= delay - TOO_SOON
        assert (row["finished_at"] - row["enqueued_at"]).total_seconds() < delay + LATE


async def test_retry_runs_on_time_though_nothing_commits_then(database: str, connection: Connection) -> None:
    async with worker(database, SURELANE_POLL_INTERVAL=RARELY, SURELANE_BACKOFF_BASE="1s"):
        row = await ended(connection, await enqueue(connection, "raise-once"))
    assert (row["finished_at"] - row["enqueued_at"]).total_seconds() < 1 + LATE


async def test_lost_connection_is_replaced_at_once(
    database: str, connection: Connection, insider: Connection
) -> None:
    async with worker(database, SURELANE_POLL_INTERVAL=RARELY):
        await idle(insider)
        before = {row["pid"] for row in await insider.fetch(BACKENDS)}
        await insider.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where {OURS}")
        async with asyncio.timeout(LATE):
            while not {row["pid"] for row in await insider.fetch(BACKENDS)} - before:  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0.02)
        await idle(insider)
        await ended(connection, await enqueue(connection, "echo"))


async def test_without_notifications_the_poll_finds_events(
    database: str, connection: Connection, insider: Connection
) -> None:
    async with worker(database, SURELANE_NOTIFICATIONS="off", SURELANE_POLL_INTERVAL="300ms"):
        for _ in range(3):
            await ended(connection, await enqueue(connection, "echo"))
        listening = await insider.fetchval(
            "select count(*) from pg_stat_activity where datname = current_database() and query ilike 'listen%'"
        )
    assert listening == 0


async def test_burst_is_not_answered_one_notification_at_a_time(
    database: str, connection: Connection
) -> None:
    """All of them have arrived when the worker handles the first."""
    async with worker(database, SURELANE_POLL_INTERVAL=RARELY) as running:
        running.process.send_signal(signal.SIGSTOP)
        for _ in range(200):
            await enqueue(connection, "nothing")
        running.process.send_signal(signal.SIGCONT)
        await _empty(connection)
        assert await claims(running) < 200


async def test_idle_worker_sends_at_most_one_statement_a_poll_interval(
    database: str, insider: Connection
) -> None:
    """The times of arrival are measured, once the statements of its start are over."""
    seen: set[tuple[int, datetime]] = set()
    last: list[datetime] = []
    async with worker(database, SURELANE_POLL_INTERVAL="400ms"), asyncio.timeout(60):
        while len(last) < 11 or last[-1] - last[0] < 9 * timedelta(milliseconds=400):
            await asyncio.sleep(0.02)
            seen.update((row["pid"], row["query_start"]) for row in await insider.fetch(BACKENDS))
            last = sorted(started for _, started in seen)[-11:]


@pytest.mark.parametrize("late", ["commit", "lock"])
async def test_what_claims_passed_over_is_found_within_two_poll_intervals(
    database: str, connection: Connection, late: str
) -> None:
    """The event is behind its lane's cursor: its transaction ended late, or another one had locked it in its turn."""
    interval = 2.0
    async with worker(database, SURELANE_POLL_INTERVAL=f"{interval}s"):
        await ended(connection, await enqueue(connection, "echo"))
        holder = await asyncpg.connect(database)
        holding = holder.transaction()
        if late == "commit":
            await holding.start()
            passed = await _enqueue_in_lane_3(holder)
        else:
            await connection.execute("select agent.pause_kind('echo')")
            passed = await _enqueue_in_lane_3(connection)
            await holding.start()
            await holder.execute("select from agent.event where id = $1 for update", passed)
            await connection.execute("select agent.resume_kind('echo')")
        await asyncio.sleep(MARGIN.total_seconds() + 0.2)  # only time moves the cursor beyond the event
        await ended(connection, await _enqueue_in_lane_3(connection))
        await holding.commit()
        await holder.close()
        await ended(connection, passed, within=2 * interval + LATE)


LATE_ANSWERS = """
alter function agent.claim_events(text[], int4, int4, interval, text, timestamptz[], text[], int8)
  rename to quick_claim;
create function agent.claim_events
( _kinds text[], _limit int4, _max_attempts int4, _invisible_for interval, _claimed_by text
, _cursors timestamptz[], _member_kinds text[], _most_bytes int8)
returns table (id int8, kind text, event_ts timestamptz, attempts int4, claim int4, vt timestamptz, event jsonb
, prior_vt timestamptz, item_key text, group_key text, max_attempts int4, enqueued_at timestamptz, errors jsonb
, traceparent text, lane int2, notes jsonb)
language plpgsql volatile security definer as $$
begin
    return query
    select c.id, c.kind, c.event_ts, c.attempts, c.claim, c.vt, c.event, c.prior_vt, c.item_key, c.group_key
    , c.max_attempts, c.enqueued_at, c.errors, c.traceparent, c.lane, c.notes
    from agent.quick_claim
    (_kinds, _limit, _max_attempts, _invisible_for, _claimed_by, _cursors, _member_kinds, _most_bytes) as c;
    perform pg_sleep(0.2);
end $$;
"""


async def test_late_commits_are_found_though_a_claim_is_always_on_its_way(
    database: str, connection: Connection
) -> None:
    """Each claim's answer takes 200 ms and brings newer events of the same lane."""
    await connection.execute(LATE_ANSWERS)
    interval = 1.0
    async with worker(database, SURELANE_POLL_INTERVAL=f"{interval}s"):
        await ended(connection, await enqueue(connection, "echo"))
        late = await asyncpg.connect(database)
        holding = late.transaction()
        await holding.start()
        passed = await _enqueue_in_lane_3(late)
        trickling = asyncio.create_task(_trickle(database))
        try:
            await asyncio.sleep(MARGIN.total_seconds() + 3 * interval)  # only time moves the cursor beyond it
            await holding.commit()
            await ended(connection, passed, within=2 * interval + LATE)
        finally:
            trickling.cancel()
            await late.close()


async def _trickle(database: str) -> None:
    trickling = await asyncpg.connect(database)
    try:
        while True:
            await _enqueue_in_lane_3(trickling)
            await asyncio.sleep(0.05)
    finally:
        trickling.terminate()


async def _enqueue_in_lane_3(connection: Connection) -> int:
    async with connection.transaction():
        identity = await enqueue(connection, "echo")
        await connection.execute("update agent.event set lane = 3 where id = $1", identity)
    return identity


async def test_a_poll_that_takes_long_delays_no_event(
    database: str, connection: Connection, insider: Connection
) -> None:
    """Such a poll walks over the dead rows of a queue whose vacuum is held back."""
    await connection.execute(SLOW_PEEK)
    async with worker(database, SURELANE_POLL_INTERVAL="10ms"):
        for _ in range(2):
            async with asyncio.timeout(30):
                while not await insider.fetchval(PEEKING):  # noqa: ASYNC110 - no event says so
                    await asyncio.sleep(0.02)
            await ended(connection, await enqueue(connection, "echo"), within=25)
            assert await insider.fetchval(PEEKING), "it is still at it"


async def _empty(connection: Connection) -> None:
    async with asyncio.timeout(30):
        while await connection.fetchval("select exists (select from agent.event)"):  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.02)
