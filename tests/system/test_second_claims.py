"""While the queue is full, a worker has two claims in flight, each over a connection that holds its session."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from surelane.calls import Connection
from surelane.jobs import Job
from surelane.queue import Queue
from tests.databases import Server
from tests.sql.migrations import becomes
from tests.system.worker import worker

COUNT = 4000
SETTINGS = {"SURELANE_CONCURRENCY": "500", "LOG_LEVEL": "info"}
"""The first claim asks for 500 events at once."""
HELD = """
select count(*), count(distinct objid), min(objid::int8::int4) from pg_locks
where locktype = 'advisory' and classid = agent.session_class()::oid
and database = (select oid from pg_database where datname = current_database())
"""
"""The connections that hold a session, and the sessions."""
CLAIMS = """
select pid from pg_stat_activity where datname = current_database() and state = 'active'
and query ~ 'agent.claim_events' and pid <> pg_backend_pid() order by backend_start
"""


@asynccontextmanager
async def slow_claims(connection: Connection) -> AsyncIterator[None]:
    """Let each claim of many events take more than half a second."""
    await connection.execute(
        "create function agent.slowly() returns trigger language plpgsql"
        " as $$ begin perform pg_sleep(0.001); return new; end $$;"
        "create trigger slowly before update of claimed_by on agent.event for each row"
        " when (old.claimed_by is null and new.claimed_by is not null) execute function agent.slowly()"
    )
    yield
    await connection.execute("drop trigger slowly on agent.event; drop function agent.slowly()")


async def fill(connection: Connection, *, groups: int | None = None) -> None:
    """Store many events at once, alone or in groups."""
    jobs = [Job("nothing", {}, group_key=None if groups is None else f"g{n % groups}") for n in range(COUNT)]
    async with connection.transaction():
        for start in range(0, COUNT, 1000):
            await Queue(connection).enqueue_many(jobs[start : start + 1000])


async def both_under_way(connection: Connection, within: float = 60) -> Sequence[int]:
    """Wait until two claims are under way; return the processes of their connections, the older one first."""
    async with asyncio.timeout(within):
        while len(rows := await connection.fetch(CLAIMS)) < 2:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.005)
    return [row["pid"] for row in rows]


async def all_ended(connection: Connection, attempts: int, within: float = 60) -> None:
    """Wait until every event is in history, each as completed, after so many attempts at most."""
    await becomes(connection, "select count(*) >= $1 from agent.event_hist", COUNT, within=within)
    query = "select outcome, count(*), max(attempts) from agent.event_hist group by outcome"
    ((outcome, count, most),) = await connection.fetch(query)
    assert (outcome, count) == ("completed", COUNT)
    assert most <= attempts
    assert await connection.fetchval("select count(*) from agent.event") == 0


@pytest.mark.parametrize("groups", [None, 500])
async def test_both_connections_hold_one_session_and_no_event_runs_twice(
    database: str, connection: Connection, groups: int | None
) -> None:
    """And SIGTERM ends both claims: what they bring is released."""
    await fill(connection, groups=groups)
    async with slow_claims(connection):
        async with worker(database, **SETTINGS) as started:
            await both_under_way(connection)
            assert tuple(await connection.fetchrow(HELD) or ())[:2] == (2, 1)
        assert not any("second claim failed" in line for line in started.output)
        assert tuple(await connection.fetchrow(HELD) or ())[:2] == (0, 0)
        assert await connection.fetchval("select count(*) from agent.event where claimed_by is not null") == 0
    async with worker(database, **SETTINGS):
        await all_ended(connection, attempts=1)
    if groups is not None:
        unordered = await connection.fetchval(
            # Not by their ends: two settles under way at once may commit in either order.
            "select count(*) from ("
            " select id, lag(id) over (partition by group_key order by claimed[array_upper(claimed, 1)], id) as before"
            " from agent.event_hist) as ended where before > id"
        )
        assert unordered == 0


async def test_what_two_claims_of_a_killed_worker_bring_is_rescued_once(
    database: str, connection: Connection
) -> None:
    """They may be committed after its death, and are rescued then: the death is seen once both have ended."""
    await fill(connection)
    async with slow_claims(connection), worker(database, **SETTINGS) as dying:
        claims = await both_under_way(connection)
        dying.process.kill()
        await dying.child.wait()
    (name,) = await connection.fetchrow("select name from agent.worker") or (None,)
    async with worker(database, **SETTINGS):
        await becomes(connection, "select count(*) = 0 from pg_stat_activity where pid = any($1)", claims)
        await becomes(
            connection, "select count(*) = 0 from agent.event where claimed_by = $1", name, within=20
        )
        await all_ended(connection, attempts=2)


@pytest.mark.parametrize("lost", [0, 1])
async def test_a_worker_outlives_the_loss_of_either_connection(
    database: str, connection: Connection, server: Server, lost: int
) -> None:
    """Without the second one it keeps its session. Without the first one it opens another, and both claim again."""
    await fill(connection)
    key = "select min(session) from agent.worker"
    async with worker(database, **SETTINGS, SURELANE_LEASE="5s") as started:
        async with slow_claims(connection):
            claims = await both_under_way(connection)
            before = await connection.fetchval(key)
            await server.execute(f"select pg_terminate_backend({claims[lost]})")
            if lost == 0:
                await becomes(
                    connection, f"select ({key}) <> $1 and ({key}) = any(agent.open_sessions())", before
                )
                await becomes(connection, "select $1 <> all(agent.open_sessions())", before, within=30)
        await all_ended(connection, attempts=2, within=90)
        if lost == 1:
            assert await connection.fetchval(key) == before
            assert any("second claim failed" in line for line in started.output)
        dead = "select count(*) from agent.worker where died_at is not null"
        assert await connection.fetchval(dead) == 0


async def test_in_poolers_mode_there_is_one_claim_at_a_time_and_no_session(
    database: str, connection: Connection
) -> None:
    await fill(connection)
    most = 0
    async with (
        worker(database, **SETTINGS, SURELANE_NOTIFICATIONS="off"),
        asyncio.timeout(60),
        slow_claims(connection),
    ):
        while not await connection.fetchval("select count(*) > 1500 from agent.event_hist"):
            most = max(most, len(await connection.fetch(CLAIMS)))
        assert tuple(await connection.fetchrow(HELD) or ())[:2] == (0, 0)
    assert most == 1
