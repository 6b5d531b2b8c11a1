"""A worker's statements end with it, and it retires from the list of workers."""

from pathlib import Path

from surelane.calls import Connection
from tests.databases import Server, as_role
from tests.sql.migrations import becomes, connected
from tests.system.pooler import pooled
from tests.system.test_running_drain import draining
from tests.system.worker import HOLDERS, claimed, ended, enqueue, live, worker


async def running(insider: Connection, what: str, wanted: bool) -> None:
    """Wait until a statement of the worker runs, or until none does."""
    active = (
        "exists (select from pg_stat_activity where datname = current_database() and state = 'active'"
        " and pid <> pg_backend_pid() and query ~ $1)"
    )
    await becomes(insider, f"select {active} = $2", what, wanted)


async def test_a_claim_does_not_outlive_its_worker(database: str, connection: Connection) -> None:
    """It waits for a lock when its worker is killed, directly or behind a pooler, and claims nothing afterwards."""
    role = as_role(database, "surelane_worker")
    identity = await enqueue(connection, "short")
    # The pooler lends ten connections, because other statements of the worker wait, too.
    async with connected(role) as insider, pooled(role, size=10) as through:
        for settings in ({}, {"DATABASE_URL": through, "SURELANE_NOTIFICATIONS": "off"}):
            async with connection.transaction(), worker(database, ready="", **settings) as started:
                await connection.execute("lock table agent.event in exclusive mode")
                await running(insider, "agent.claim_events", wanted=True)
                started.child.kill()
                await started.child.wait()
                await running(insider, "agent.claim_events", wanted=False)
            row = await live(connection, identity)
            assert (row["attempts"], row["claimed_by"]) == (0, None)


async def test_a_worker_that_is_being_announced_as_it_ends_is_off_the_list(
    database: str, connection: Connection
) -> None:
    async with connected(as_role(database, "surelane_worker")) as insider, connected(database) as foreign:
        await foreign.execute("begin; lock table agent.worker in exclusive mode")
        async with worker(database, ready="/livez") as started:
            await running(insider, "agent.announce_worker", wanted=True)
            await draining(started)
            await foreign.execute("rollback")
            assert await started.child.wait() == 0
    assert await connection.fetchval("select count(*) from agent.worker") == 0


LATE = """
create function agent.wait_until_unlisted() returns trigger language plpgsql as $$ begin
    while exists (select from agent.worker where name = new.name) loop perform pg_sleep(0.01); end loop;
    return new; end $$;
create trigger late before insert on agent.worker for each row execute function agent.wait_until_unlisted()
"""
"""Lists a worker as late as can be: once it has been taken off the list."""


async def test_a_worker_that_is_being_listed_as_it_ends_is_off_the_list(
    database: str, connection: Connection, server: Server, tmp_path: Path
) -> None:
    """It has lost its connection while it drains, and is on the way to open its session again."""
    end = tmp_path / "end"
    async with worker(database) as started:
        identity = await enqueue(connection, "wait-for-file", {"path": str(end)})
        name = (await claimed(connection, identity))["claimed_by"]
        await draining(started)
        await connection.execute(LATE)
        for (pid,) in await connection.fetch(HOLDERS, name):
            await server.execute(f"select pg_terminate_backend({pid})")
        async with connected(as_role(database, "surelane_worker")) as insider:
            await running(insider, "agent.introduce_worker", wanted=True)
            end.touch()
            assert await started.child.wait() == 0
            await running(insider, "agent.introduce_worker", wanted=False)
    assert (await ended(connection, identity))["outcome"] == "completed"
    assert await connection.fetchval("select count(*) from agent.worker") == 0
