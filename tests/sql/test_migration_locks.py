"""Runners wait for one another, and name sessions that lock them out."""

import asyncio
from pathlib import Path

import asyncpg
import pytest

from surelane_migrations.errors import LockedError
from surelane_migrations.runner import ADVISORY_KEY
from tests.databases import Server
from tests.sql.migrations import (
    BLOCKED,
    FIRST,
    SECOND,
    becomes,
    command,
    connected,
    finish,
    migration,
    start,
    state,
    write_scripts,
)


@pytest.mark.slow
async def test_of_ten_runners_one_applies_and_nine_do_nothing(empty_database: str, tmp_path: Path) -> None:
    write_scripts(
        tmp_path,
        incremental={"000-once.sql": "create table agent.once (); select pg_advisory_xact_lock_shared(1)"},
    )
    async with connected(empty_database) as gate:
        await gate.execute("select pg_advisory_lock(1)")  # the winner waits here until all ten have tried
        patience = {"SURELANE_MIGRATION_LOCK_ATTEMPTS": "1000"}
        runners = [await start(empty_database, "apply", "--scripts", tmp_path, **patience) for _ in range(10)]
        await becomes(gate, BLOCKED)
        await asyncio.gather(*(waits_or_blocks(runner) for runner in runners))
        await gate.execute("select pg_advisory_unlock(1)")
        finished = await asyncio.gather(*(finish(runner) for runner in runners))
    assert [runner.code for runner in finished] == [0] * 10
    assert sum(f"migrated from nothing to {FIRST}" in runner.progress for runner in finished) == 1
    assert sum("nothing to do" in runner.progress for runner in finished) == 9


async def waits_or_blocks(runner: asyncio.subprocess.Process) -> None:
    """Read a runner's first line of progress, which says that it migrates or that it waits for another."""
    assert runner.stderr
    line = (await asyncio.wait_for(runner.stderr.readline(), 120)).decode()
    assert "migrating from nothing" in line or "waiting for another migration" in line, line


async def test_waiting_names_the_holder_and_keeps_nothing_open(empty_database: str, tmp_path: Path) -> None:
    write_scripts(tmp_path)
    lines: list[str] = []
    async with connected(empty_database) as other, connected(empty_database) as observer:
        await other.execute("set application_name = 'night shift'; begin")
        await other.execute(f"select pg_advisory_xact_lock({ADVISORY_KEY})")
        patient = migration(tmp_path, lines=lines, attempts=10_000)
        waiting = asyncio.create_task(patient.apply(empty_database))
        async with asyncio.timeout(60):
            while len(lines) < 3:  # noqa: ASYNC110 - a list has no event
                await asyncio.sleep(0.01)
        pid = other.get_server_pid()
        assert (
            f"waiting for another migration, attempt 1 of 10000: process {pid} (night shift, role surelane"
            in lines[0]
        )
        assert ", since 20" in lines[0]
        # Between two attempts there is no connection, so nothing holds back vacuum.
        await becomes(
            observer,
            "select not exists (select from pg_stat_activity where application_name = "
            "'surelane-migrations' and datname = current_database())",
        )
        await other.execute("rollback")
        outcome = await asyncio.wait_for(waiting, 60)
    assert outcome.migrated


async def test_a_runner_finishes_as_soon_as_another_has_migrated(empty_database: str, tmp_path: Path) -> None:
    """It reads the version before it tries the lock, so that a lock that still stands does not delay it."""
    write_scripts(tmp_path)
    async with connected(empty_database) as other:
        await migration(tmp_path).apply(empty_database)
        await other.execute("begin")
        await other.execute(f"select pg_advisory_xact_lock({ADVISORY_KEY})")
        outcome = await migration(tmp_path).apply(empty_database)
        await other.execute("rollback")
    assert not outcome.migrated


async def test_a_lock_never_had_is_an_error_with_its_holder(empty_database: str, tmp_path: Path) -> None:
    write_scripts(tmp_path)
    async with connected(empty_database) as other:
        await other.execute("begin")
        await other.execute(f"select pg_advisory_xact_lock({ADVISORY_KEY})")
        with pytest.raises(LockedError, match=rf"process {other.get_server_pid()} .*pg_terminate_backend"):
            await migration(tmp_path, attempts=3).apply(empty_database)
        finished = await command(
            empty_database, "apply", "--scripts", tmp_path, SURELANE_MIGRATION_LOCK_ATTEMPTS="2"
        )
    assert finished.code == 5
    assert finished.progress.count("waiting for another migration") == 2


async def test_other_databases_are_not_in_the_way(empty_database: str, database: str, tmp_path: Path) -> None:
    async with connected(database) as other:
        await other.execute("begin")
        await other.execute(f"select pg_advisory_xact_lock({ADVISORY_KEY})")
        outcome = await migration(write_scripts(tmp_path)).apply(empty_database)
    assert outcome.migrated


async def test_an_equal_version_takes_neither_lock(empty_database: str, tmp_path: Path) -> None:
    await migration(write_scripts(tmp_path)).apply(empty_database)
    async with connected(empty_database) as other:
        await other.execute("begin; lock table agent.migration in exclusive mode")
        await other.execute(f"select pg_advisory_xact_lock({ADVISORY_KEY})")
        outcome = await migration(tmp_path).apply(
            empty_database
        )  # it waits for 200 ms for either, then gives up
    assert not outcome.migrated


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


async def test_a_table_lock_never_had_is_an_error_with_its_holder(
    empty_database: str, tmp_path: Path
) -> None:
    await migration(write_scripts(tmp_path)).apply(empty_database)
    before = await state(empty_database)
    async with connected(empty_database) as other:
        await other.execute("begin; lock table agent.migration in share mode")
        with pytest.raises(
            LockedError, match=rf"agent.migration was locked for 0.2 s by process {other.get_server_pid()}"
        ):
            await migration(tmp_path, SECOND).apply(empty_database)
    assert await state(empty_database) == before


async def test_a_script_that_waits_too_long_gives_up_whole(empty_database: str, tmp_path: Path) -> None:
    await migration(write_scripts(tmp_path)).apply(empty_database)
    before = await state(empty_database)
    write_scripts(
        tmp_path,
        incremental={"001-a.sql": "create table agent.a ()", "002-b.sql": "alter table agent.note add b int"},
    )
    async with connected(empty_database) as reader:
        await reader.execute("begin; select * from agent.note")
        with pytest.raises(
            LockedError, match=r"incremental/002-b\.sql waited too long for a lock.*quieter hour"
        ):
            await migration(tmp_path, SECOND).apply(empty_database)
    assert await state(empty_database) == before


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
