"""Runners wait for one another, and name sessions that lock them out."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from surelane.calls import Connection
from surelane_migrations.errors import LockedError
from surelane_migrations.runner import ADVISORY_KEY
from tests.databases import Server
from tests.processes import until
from tests.sql.migrations import (
    BACKENDS,
    BLOCKED,
    FIRST,
    SECOND,
    becomes,
    command,
    connected,
    finish,
    migration,
    refused,
    start,
    write_scripts,
)


@asynccontextmanager
async def migrating(dsn: str) -> AsyncIterator[Connection]:
    """Hold the lock of migrations in an open transaction."""
    async with connected(dsn) as other, other.transaction():
        await other.execute(f"select pg_advisory_xact_lock({ADVISORY_KEY})")
        yield other


async def test_waiting_names_the_holder_and_keeps_nothing_open(empty_database: str, tmp_path: Path) -> None:
    """It ends with an error after its attempts, and migrates if the lock is free by then."""
    write_scripts(tmp_path)
    lines: list[str] = []
    async with migrating(empty_database) as other:
        await other.execute("set application_name = 'night shift'")
        holder = f"process {other.get_server_pid()} "
        async with refused(empty_database, LockedError, f"{holder}.*pg_terminate_backend"):
            await migration(tmp_path, attempts=3).apply(empty_database)
        twice = {"SURELANE_MIGRATION_LOCK_ATTEMPTS": "2"}
        finished = await command(empty_database, "apply", "--scripts", tmp_path, **twice)
        assert finished.code == 5
        assert finished.progress.count("waiting for another migration") == 2
        patient = migration(tmp_path, lines=lines, attempts=10_000, delay="2s")
        waiting = asyncio.create_task(patient.apply(empty_database))
        await until(lambda: bool(lines), within=60)
        first = f"waiting for another migration, attempt 1 of 10000: {holder}(night shift, role surelane"
        assert first in lines[0]
        assert ", since 20" in lines[0]
        # Between two attempts there is no connection, so nothing holds back vacuum.
        await becomes(other, f"select ({BACKENDS}) = 0")
    assert (await asyncio.wait_for(waiting, 60)).migrated


async def test_other_databases_are_not_in_the_way(empty_database: str, database: str, tmp_path: Path) -> None:
    async with migrating(database):
        assert (await migration(write_scripts(tmp_path)).apply(empty_database)).migrated


async def test_an_equal_version_takes_neither_lock(empty_database: str, tmp_path: Path) -> None:
    """So a runner finishes as soon as another one has migrated. For either lock it would wait 200 ms, then give up."""
    await migration(write_scripts(tmp_path)).apply(empty_database)
    async with migrating(empty_database) as other:
        await other.execute("lock table agent.migration in exclusive mode")
        assert not (await migration(tmp_path).apply(empty_database)).migrated


async def test_a_migration_keeps_writers_of_its_table_out(empty_database: str, tmp_path: Path) -> None:
    await migration(write_scripts(tmp_path)).apply(empty_database)
    write_scripts(tmp_path, incremental={"001-gate.sql": "select pg_advisory_xact_lock_shared(1)"})
    async with connected(empty_database) as gate:
        await gate.execute("select pg_advisory_lock(1)")
        running = asyncio.create_task(migration(tmp_path, SECOND, timeout="1m").apply(empty_database))
        await becomes(gate, BLOCKED)
        modes = await gate.fetch(
            "select mode from pg_locks where relation = 'agent.migration'::regclass and granted"
            " and database = (select oid from pg_database where datname = current_database())"
        )
        assert "ExclusiveLock" in [row["mode"] for row in modes]
        assert await gate.fetchval("select version from agent.version") == str(FIRST)
        await gate.execute("select pg_advisory_unlock(1)")
        assert (await running).migrated


@pytest.mark.parametrize(
    ("held", "says"),
    [
        ("lock table agent.migration in share mode", "agent.migration was locked for 0.2 s by process {} "),
        ("select * from agent.note", r"incremental/002-b\.sql waited too long for a lock.*quieter hour"),
    ],
    ids=["its own table", "a script's table"],
)
async def test_a_table_lock_never_had_is_an_error_that_leaves_nothing(
    empty_database: str, tmp_path: Path, held: str, says: str
) -> None:
    await migration(write_scripts(tmp_path)).apply(empty_database)
    later = {"001-a.sql": "create table agent.a ()", "002-b.sql": "alter table agent.note add b int"}
    write_scripts(tmp_path, incremental=later)
    async with connected(empty_database) as other, other.transaction():
        await other.execute(held)
        async with refused(empty_database, LockedError, says.format(other.get_server_pid())):
            await migration(tmp_path, SECOND).apply(empty_database)


@pytest.mark.parametrize(
    "held",
    ["lock table agent.migration in share mode", f"select pg_advisory_xact_lock({ADVISORY_KEY})"],
    ids=["table", "runner"],
)
async def test_a_prepared_transaction_that_has_our_lock_is_named_and_the_advice_ends_it(
    empty_database: str, tmp_path: Path, held: str
) -> None:
    await migration(write_scripts(tmp_path)).apply(empty_database)
    write_scripts(tmp_path, incremental={"001-a.sql": "create table agent.a ()"})
    async with connected(empty_database) as other:
        if not int(await other.fetchval("show max_prepared_transactions")):
            pytest.skip("this server has no prepared transactions")
        await other.execute(f"begin; {held}; prepare transaction 'its owner''s'")
        try:
            with pytest.raises(LockedError, match="the prepared transaction 'its owner''s'") as locked:
                await migration(tmp_path, SECOND).apply(empty_database)
        finally:
            await other.execute("rollback prepared 'its owner''s'")
        assert "with rollback prepared 'its owner''s'." in str(locked.value)
    assert (await migration(tmp_path, SECOND).apply(empty_database)).migrated


async def test_after_a_deadlock_a_migration_begins_anew(
    server: Server, empty_database: str, tmp_path: Path
) -> None:
    write_scripts(
        tmp_path,
        incremental={"000-once.sql": "select 1", "001-two.sql": "lock table public.a; lock table public.b"},
    )
    async with connected(empty_database) as observer:
        await observer.execute("create table public.a (); create table public.b ()")
        name = await observer.fetchval("select current_database()")
        service = await asyncpg.connect(server.admin, database=name)  # only a superuser may set the timeout
        # With it, the server looks for deadlocks in the migration's name alone: the service is not the one it ends.
        await service.execute("set deadlock_timeout = '1h'")
        transaction = service.transaction()
        await transaction.start()
        await service.execute("lock table public.b in access share mode")
        runner = await start(empty_database, "apply", "--scripts", tmp_path)
        await becomes(observer, BLOCKED)
        await service.execute("lock table public.a in access share mode")
        await transaction.rollback()
        await service.close()
        finished = await finish(runner)
    assert finished.code == 0, finished.progress
    assert "waited for each other's locks" in finished.progress
