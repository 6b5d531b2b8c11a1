"""A worker vacuums the live queue when enough of its rows are dead, if its role may."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from surelane.calls import Connection
from surelane_service.engine import Engine
from surelane_worker.duties import RARELY, Vacuum
from tests.databases import Server, as_role
from tests.sql.queue_steps import enqueue
from tests.vacuum import snapshot_held

VACUUMS = "select vacuum_count from pg_stat_user_tables where relid = 'agent.event'::regclass"
MAINTAIN = "select current_setting('server_version_num')::int >= 170000"


@pytest.fixture
async def database(server: Server, template: str) -> AsyncIterator[str]:
    """Return the URI of a database of the test's own: no session of an earlier test still has rows to report."""
    async with server.fresh(template) as name:
        yield server.uri(name)


@pytest.fixture
async def queue(database: str) -> AsyncIterator[Connection]:
    """Connect as the owner, to a queue without dead rows."""
    connection = await asyncpg.connect(database)
    await connection.execute("vacuum agent.event")
    yield connection
    await connection.close()


@pytest.fixture
async def worker(database: str) -> AsyncIterator[Engine]:
    """A worker's engine."""
    connection = await asyncpg.connect(as_role(database, "surelane_worker"))
    yield Engine(connection)
    await connection.close()


async def die(queue: Connection, count: int) -> None:
    """Leave so many dead rows, and let the statistics know of them."""
    await queue.execute(
        "insert into agent.event (event_ts, event, kind, head, lane)"
        " select now(), '{}', 'mail', true, 0 from generate_series(1, $1::int)",
        count,
    )
    await queue.execute("delete from agent.event; select pg_stat_force_next_flush()")
    await queue.execute("select 1")


async def vacuumed(worker: Engine, pause: float) -> float:
    """Look until the rows are gone: a session of autovacuum holds a snapshot now and then. Return the last pause."""
    vacuum = Vacuum(worker, lambda: True)
    while True:
        told = await vacuum.look(pause)
        if (await worker.dead_share() or 0) < 1:
            return told


async def test_many_dead_rows_are_vacuumed_and_the_next_look_is_as_far_as_they_need_to_come_again(
    queue: Connection, worker: Engine
) -> None:
    if not await queue.fetchval(MAINTAIN):
        assert await worker.dead_share() is None
        return
    vacuum, before = Vacuum(worker, lambda: True), await queue.fetchval(VACUUMS)
    await die(queue, 500)
    assert await worker.dead_share() == pytest.approx(0.3, abs=0.15)  # the statistics are about right
    assert await vacuum.look(10) == 20, "few are dead: it looks half as often"
    await die(queue, 3500)
    assert 3 < await vacuumed(worker, 10) < 7, "twice as many as are worth it came in 10 s"
    assert await queue.fetchval(VACUUMS) > before
    assert (await worker.dead_share() or 0) < 0.5
    await die(queue, 2500)
    assert await vacuumed(worker, 0.1) >= 1
    assert await vacuum.look(RARELY) == RARELY


async def test_a_vacuum_that_is_held_back_is_not_repeated_soon(
    database: str, queue: Connection, worker: Engine
) -> None:
    other = await asyncpg.connect(database)
    async with snapshot_held(other):
        await enqueue(queue, "mail")
        await die(queue, 3000)
        if await queue.fetchval(MAINTAIN):
            vacuum = Vacuum(worker, lambda: True)
            assert [await vacuum.look(10), await vacuum.look(20)] == [20, 40], "each removes none"
    await other.close()


async def test_a_role_without_the_right_looks_and_does_nothing(queue: Connection, worker: Engine) -> None:
    if not await queue.fetchval(MAINTAIN):
        return
    await die(queue, 3000)
    before = await queue.fetchval(VACUUMS)
    await queue.execute("revoke maintain on agent.event from agent_worker")
    try:
        assert await worker.dead_share() is None
        assert await Vacuum(worker, lambda: True).look(RARELY) == RARELY
    finally:
        await queue.execute("grant maintain on agent.event to agent_worker")
    assert await queue.fetchval(VACUUMS) == before
