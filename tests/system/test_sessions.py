"""Workers that die without a word, that stand still, and that lose their connections: by their sessions."""

import asyncio
import signal
from datetime import timedelta
from typing import Any

import asyncpg

from surelane.calls import Connection
from surelane_operator.changes import Changes
from surelane_operator.reads.timeline import story_of
from surelane_service.engine import DEAD_FOR
from tests.databases import Server
from tests.processes import until
from tests.system.worker import HOLDER, claimed, ended, enqueue, live, worker

SHORT = {"SURELANE_SESSION_GRACE": "500ms"}


async def sessions(connection: Connection, number: int) -> None:
    """Wait until so many workers have announced themselves and have sessions."""
    wanted = "select count(*) = $1 from agent.list_workers() as w where w.alive and w.kinds <> '{}'"
    async with asyncio.timeout(60):
        while not await connection.fetchval(wanted, number):  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.02)


async def test_a_killed_workers_events_run_again_within_seconds(
    database: str, connection: Connection
) -> None:
    """And the operator's tools name the worker, its death and the rescue."""
    operations = Changes(connection)
    async with worker(database, **SHORT) as first:
        identity = await enqueue(connection, "hang-once")
        held = await claimed(connection, identity)
        async with worker(database, **SHORT) as second:
            await sessions(connection, 2)
            first.process.kill()
            await first.child.wait()
            row = await ended(connection, identity, within=60)
            (dead,) = [each for each in await operations.workers() if not each["alive"]]
            assert (dead["name"], dead["state"]) == (held["claimed_by"], "died")
            assert any('"worker died"' in line for line in second.output)
    assert row["finished_at"] - dead["died_at"] < timedelta(seconds=60) < DEAD_FOR
    assert (row["outcome"], row["attempts"]) == ("completed", 2)
    job: Any = await operations.get(identity)
    steps = [(step.what, step.by) for step in story_of(job)]
    assert ("died", held["claimed_by"]) in steps
    assert ("rescued", row["claimed_by"]) in steps
    assert "lapsed" not in [what for what, _ in steps]


async def test_a_worker_that_could_not_end_a_claim_is_rescued(database: str, connection: Connection) -> None:
    """Another transaction has the event's row locked as the worker stops, for longer than it waits."""
    foreign = await asyncpg.connect(database)
    async with worker(database, SURELANE_DRAIN_TIMEOUT="100ms", **SHORT) as first:
        identity = await enqueue(connection, "hang-once")
        name = (await claimed(connection, identity))["claimed_by"]
        async with worker(database, **SHORT) as second:
            await sessions(connection, 2)
            async with foreign.transaction():
                await foreign.execute("select from agent.event where id = $1 for update", identity)
                assert await first.child.stop(signal.SIGTERM, 60) == 0
                assert any("stopped with unsettled events" in line for line in first.output)
            row = await ended(connection, identity, within=60)
            assert any('"worker died"' in line and name in line for line in second.output)
    assert (row["outcome"], row["attempts"]) == ("completed", 2)
    await foreign.close()


async def test_a_broken_session_is_opened_again_and_its_claims_are_kept(
    database: str, connection: Connection, server: Server
) -> None:
    """By a worker without a free slot, too: it does not claim, and so would not notice."""
    full = {
        "SURELANE_HANDLERS": "tests.system.worker_handlers:alone",
        "SURELANE_CONCURRENCY": "1",
        "SURELANE_DRAIN_TIMEOUT": "100ms",
    }
    async with worker(database, **full), worker(database, **full):
        identity = await enqueue(connection, "hang-once")
        name = (await claimed(connection, identity))["claimed_by"]
        await sessions(connection, 2)
        before = await connection.fetchval("select session from agent.worker where name = $1", name)
        await server.execute(f"select pg_terminate_backend({await connection.fetchval(HOLDER, name)})")
        after = "select session from agent.worker where name = $1 and session = any(agent.open_sessions())"
        async with asyncio.timeout(60):
            while await connection.fetchval(after, name) in (None, before):  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0.02)
        row = await live(connection, identity)
        assert (row["attempts"], row["claimed_by"]) == (1, name)


async def test_workers_that_stand_still_are_not_dead(database: str, connection: Connection) -> None:
    """Neither one with claims, for longer than a grace, nor any that it watched."""
    async with worker(database, **SHORT) as first:
        identity = await enqueue(connection, "sleep", {"seconds": 3})
        name = (await claimed(connection, identity))["claimed_by"]
        async with worker(database, **SHORT):
            await sessions(connection, 2)
            first.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(2)  # how long it stands still: four graces
            first.process.send_signal(signal.SIGCONT)
            row = await ended(connection, identity)
            assert await connection.fetchval("select bool_and(died_at is null) from agent.worker")
    assert (row["outcome"], row["attempts"], row["claimed_by"]) == ("completed", 1, name)


async def test_a_worker_behind_a_pooler_has_no_session(database: str, connection: Connection) -> None:
    async with worker(database, SURELANE_NOTIFICATIONS="off", SURELANE_POLL_INTERVAL="200ms"):
        await ended(connection, await enqueue(connection, "echo"))
        await sessions(connection, 1)
        assert await connection.fetchval("select bool_and(session is null) from agent.worker")


async def test_a_worker_with_a_new_session_learns_at_once_what_it_lost(
    database: str, connection: Connection, server: Server
) -> None:
    """Its next heartbeat would come more than a minute later."""
    async with worker(database) as running:
        identity = await enqueue(connection, "hang-once")
        name = (await claimed(connection, identity))["claimed_by"]
        await sessions(connection, 1)
        await connection.execute(
            "update agent.event set claimed = claimed || now(), claimed_by = 'another', vt = now() + interval '1h'"
        )
        await server.execute(f"select pg_terminate_backend({await connection.fetchval(HOLDER, name)})")
        await until(lambda: any("lease lost" in line for line in running.output), what="the loss")
