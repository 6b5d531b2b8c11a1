"""Backups are taken while the system works, and what they hold is worked off after the restore."""

import asyncio
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testcontainers.community.postgres import PostgresContainer

from surelane_dev.accounts import OWNER, create_roles, prepare, uri_of
from surelane_dev.data_directory import MAJOR, make, make_private, program, server_user
from surelane_dev.postgres import embedded
from tests import forked, old_postgres
from tests.databases import CRASHABLE, IMAGE, migrate
from tests.operations.load import each_ended_once, load
from tests.sql.migrations import connected
from tests.system.restartable import NAME, Restartable, restartable
from tests.system.worker import worker

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]

KEYS = """
select array_agg(item_key) from (select item_key from agent.event union all select item_key from agent.event_hist) as k
"""


async def run(command: Path, *arguments: str | Path, user: int | None = None, at: Path | None = None) -> str:
    """Run one of PostgreSQL's programs; return what it printed."""
    identity: dict[str, Any] = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    pipes: Any = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.STDOUT}
    process = await asyncio.create_subprocess_exec(command, *arguments, cwd=at, **pipes, **identity)
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


async def verified(uri: str) -> None:
    """Let the migrations compare every object, function body and grant with what this release has."""
    process = await forked.start("surelane_migrations", "verify", env={**os.environ, "DATABASE_URL": uri})
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


async def test_a_dump_under_load_has_each_event_once_and_its_restore_works_them_off(tmp_path: Path) -> None:
    file = tmp_path / "surelane.dump"
    async with restartable() as server:
        admin = server.uri("postgres")
        async with worker(server.uri()), load(server.uri()) as stored:
            await stored.reached(200)
            before = list(stored.acknowledged)
            await run(program("pg_dump"), "-Fc", "-d", admin, "-f", file)
            await stored.reached(50)
        await server.execute(f"create database restored owner {OWNER}")
        restored = uri_of(admin, role="postgres", database="restored")
        await run(program("pg_restore"), "-d", restored, file)
        await server.execute("revoke all on database restored from public")
        await server.execute(
            "grant connect on database restored to agent_ingest, agent_worker, agent_operator, agent_producer"
        )
        owner = uri_of(admin, role=OWNER, database="restored")
        await verified(owner)
        async with connected(owner) as connection:
            kept = await connection.fetchval(KEYS)
            assert len(kept) == len(set(kept)), "an event is in the dump twice"
            assert set(kept) >= set(before), "an event is missing that was acknowledged before the dump"
            async with worker(owner):
                await each_ended_once(connection, kept)


async def archived(server: Restartable) -> None:
    """Wait until everything that was committed so far is in the archive."""
    async with connected(server.uri("postgres")) as admin, asyncio.timeout(60):
        last = await admin.fetchval("select pg_walfile_name(pg_switch_wal())")
        while (await admin.fetchval("select last_archived_wal from pg_stat_archiver") or "") < last:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_a_point_in_time_is_restored_and_only_what_came_later_is_lost(tmp_path: Path) -> None:
    archive = make(tmp_path / "archive")
    user = server_user(archive)
    make_private(archive, user)
    archiving = {**CRASHABLE, "archive_mode": "on", "archive_command": f"cp %p {archive}/%f"}
    recovery = {
        "restore_command": f"cp {archive}/%f %p",
        "recovery_target_name": "before the mistake",
        "recovery_target_action": "promote",
    }
    async with restartable(archiving) as server:
        copy = await server.copy(tmp_path / "copy", recovery)
        async with worker(server.uri()), load(server.uri()) as stored:
            await stored.reached(100)
            before = list(stored.acknowledged)
            await server.execute("select pg_create_restore_point('before the mistake')")
            await stored.reached(100)
            after = stored.acknowledged[len(before) + 20 :]
        await archived(server)
    try:
        await copy.start()
        async with copy.connected() as connection, asyncio.timeout(60):
            while await connection.fetchval("select pg_is_in_recovery()"):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        async with copy.connected() as connection, worker(copy.uri()):
            await each_ended_once(connection, before)
            assert not set(await connection.fetchval(KEYS)) & set(after), "it came after the point in time"
    finally:
        await copy.aclose()


async def test_pg_upgrade_to_the_next_major_version_keeps_every_event(tmp_path: Path) -> None:
    directory = make(tmp_path / "servers")
    user = server_user(directory)
    new = directory / MAJOR
    old = directory / str(old_postgres.OLDEST)
    async with old_postgres.oldest_postgres(directory, CRASHABLE) as admin:
        await prepare(admin, NAME)
        uri = uri_of(admin, role=OWNER, database=NAME)
        await migrate(uri)
        async with load(uri) as stored:
            async with worker(uri):
                await stored.reached(100)
            await stored.reached(20)
        keys = list(stored.acknowledged)
    make_private(new, user)
    plain = ("-U", "postgres", "-A", "trust", "--no-data-checksums")  # as the old server, which has none
    await run(program("initdb"), "-D", new, *plain, user=user)
    programs = (program("").parents[1] / "pginstall" / "bin", program("").parent / "bin")
    await run(
        program("pg_upgrade"),
        *("-b", programs[0], "-B", programs[1], "-d", old, "-D", new, "-U", "postgres"),
        *("-s", new),
        user=user,
        at=new,
    )
    async with embedded(directory, on_line=print, settings=CRASHABLE) as postgres:
        uri = uri_of(postgres.uri, role=OWNER, database=NAME)
        async with connected(postgres.uri) as admin_connection:
            await create_roles(admin_connection)
        await verified(uri)
        async with connected(uri) as connection, worker(uri), load(uri, "later") as further:
            await further.reached(20)
            await each_ended_once(connection, [*keys, *further.acknowledged[:20]])


@pytest.fixture
def timescaledb() -> Iterator[str]:
    """Run TimescaleDB; yield its superuser's URI."""
    container = PostgresContainer(
        IMAGE, username="postgres", password=secrets.token_hex(8), dbname="postgres", driver=None
    )
    with container.with_command(["postgres", "-c", "fsync=off"]) as running:
        yield running.get_connection_url()


async def test_everything_moves_to_a_server_without_timescaledb(timescaledb: str, tmp_path: Path) -> None:
    """As the runbook says. History is copied by itself, because its rows are in TimescaleDB's own tables."""
    await prepare(timescaledb, NAME)
    old = uri_of(timescaledb, role=OWNER, database=NAME)
    await migrate(old)
    async with load(old) as stored:
        async with worker(old):
            await stored.reached(50)
        await stored.reached(20)
    dump, history = tmp_path / "surelane.dump", tmp_path / "history.copy"
    superuser = f"{timescaledb.rpartition('/')[0]}/{NAME}"
    kept_out = [f"--exclude-table-data=agent.{name}" for name in ("version", "migration", "measurement")]
    async with connected(old) as connection:
        assert await connection.fetchval("select agent.history_is_hypertable()")
        ended = await connection.fetchval("select count(*) from agent.event_hist")
        assert ended > 0
    await run(program("pg_dump"), "-Fc", "-a", "--schema=agent", *kept_out, "-d", superuser, "-f", dump)
    await run(program("psql"), "-d", superuser, "-c", rf"\copy (select * from agent.event_hist) to {history}")
    async with restartable() as server:
        new = server.uri("postgres")
        await run(program("pg_restore"), "--data-only", "--disable-triggers", "-d", new, dump)
        await run(program("psql"), "-d", new, "-c", rf"\copy agent.event_hist from {history}")
        await verified(server.uri())
        async with (
            server.connected() as connection,
            worker(server.uri()),
            load(server.uri(), "later") as later,
        ):
            assert await connection.fetchval("select count(*) from agent.event_hist") >= ended
            await later.reached(5)
            await each_ended_once(connection, [*stored.acknowledged, *later.acknowledged[:5]])
