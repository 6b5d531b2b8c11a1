"""The command prints results, exit codes and errors that tell an operator what to do."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from surelane_migrations.common.durations import parse_duration
from surelane_migrations.errors import IncompatibleError, UnreachableError, WaitTimedOutError
from surelane_migrations.status import wait_for_schema
from tests.databases import Server, as_role
from tests.processes import free_port, until
from tests.sql.migrations import (
    FIRST,
    SECOND,
    becomes,
    command,
    connected,
    finish,
    migration,
    one_returns,
    start,
    state,
    write_scripts,
)
from tests.system.half_open import half_open

SECONDS = parse_duration("60s")


async def test_apply_reports_every_script_and_leaves_no_session(empty_database: str, tmp_path: Path) -> None:
    write_scripts(tmp_path)
    first = await command(empty_database, "apply", "--scripts", tmp_path)
    assert (first.code, first.output) == (0, "")
    async with connected(empty_database) as connection:
        await becomes(
            connection, "select count(*) = 1 from pg_stat_activity where datname = current_database()"
        )
        with pytest.raises(asyncpg.UndefinedObjectError):
            await connection.fetchval("show surelane.script")
    assert f"migrating from nothing to {FIRST}" in first.progress
    for script in ("incremental/000-note.sql", "idempotent/000-one.sql"):
        assert re.search(rf"  {script} .* ms\n", first.progress)
    assert re.search(rf"migrated from nothing to {re.escape(str(FIRST))} in \d+\.\d+ s", first.progress)
    second = await command(empty_database, "apply", "--scripts", tmp_path)
    assert (second.code, second.progress) == (0, f"the schema is at {FIRST}: nothing to do\n")


async def test_status_tells_what_is_applied_pending_and_changed(empty_database: str, tmp_path: Path) -> None:
    async def status() -> Any:
        finished = await command(empty_database, "status", "--json", "--scripts", tmp_path)
        assert finished.code == 0, finished.progress
        return json.loads(finished.output)

    write_scripts(tmp_path)
    empty = await status()
    assert (empty["state"], empty["version"], empty["owner"]) == ("absent", None, None)
    await migration(tmp_path).apply(empty_database)
    current = await status()
    told = ("state", "version", "min_compatible", "owner", "role")
    assert [current[each] for each in told] == ["current", str(FIRST), str(FIRST), "surelane", "surelane"]
    write_scripts(tmp_path, incremental={"000-note.sql": "select 1", "001-b.sql": "select 2"})
    different = await status()
    assert different["state"] == "different"
    assert [(script["file_name"], script["state"]) for script in different["incremental"]] == [
        ("000-note.sql", "changed"),
        ("001-b.sql", "pending"),
    ]
    (tmp_path / "incremental" / "001-b.sql").unlink()
    (tmp_path / "incremental" / "000-note.sql").rename(tmp_path / "incremental" / "000-notes.sql")
    text = await command(empty_database, "status", "--scripts", tmp_path)
    assert "vanished   000-note.sql" in text.output
    assert "pending    000-notes.sql" in text.output


async def test_the_plan_is_sql_that_does_what_apply_does(empty_database: str, tmp_path: Path) -> None:
    write_scripts(tmp_path)
    empty = await state(empty_database)
    planned = await command(empty_database, "plan", "--scripts", tmp_path)
    assert planned.code == 0
    assert await state(empty_database) == empty
    async with connected(empty_database) as connection:
        await connection.execute(planned.output)
    by_hand = await state(empty_database)
    async with connected(empty_database) as connection:
        await connection.execute("drop schema agent cascade")
    await migration(tmp_path).apply(empty_database)
    assert (await state(empty_database))[0] == by_hand[0]
    assert (await command(empty_database, "plan", "--scripts", tmp_path)).output.endswith(
        "nothing to do without --again.\n"
    )


async def test_verify_finds_what_was_changed_by_hand(empty_database: str, tmp_path: Path) -> None:
    await migration(write_scripts(tmp_path)).apply(empty_database)
    objects, _ = await state(empty_database)
    (tmp_path / "schema.txt").write_text("# comment\n" + "\n".join(objects))
    assert (await command(empty_database, "verify", "--scripts", tmp_path)).code == 0
    async with connected(empty_database) as connection:
        await connection.execute(
            f"{one_returns(9)}; alter table agent.note add extra int; grant select on agent.note to agent_ingest; "
            "alter table agent.migration drop constraint checksum_sha256"
        )
    finished = await command(empty_database, "verify", "--scripts", tmp_path)
    assert finished.code == 7
    for expected in (
        "missing:    function one()",
        "missing:    constraint checksum_sha256 on migration",
        "unexpected: function one()",
        "unexpected: column note.extra integer",
        "unexpected: grant select on note to agent_ingest",
    ):
        assert expected in finished.output
    assert "apply --again" in finished.progress


async def test_wait_outlasts_a_missing_database_and_schema(empty_database: str, tmp_path: Path) -> None:
    write_scripts(tmp_path)
    name = empty_database.partition("?")[0].rpartition("/")[2]
    missing = empty_database.replace(name, f"{name}_later")
    lines: list[str] = []
    with pytest.raises(WaitTimedOutError, match=r"gave up after 0\.5 s: cannot connect.*_later"):
        await wait_for_schema(missing, timeout=parse_duration("0.5s"), report=lines.append)
    assert len(lines) == 1  # it prints the same reason once
    lines.clear()
    waiting = asyncio.create_task(wait_for_schema(empty_database, timeout=SECONDS, report=lines.append))
    await until(lambda: lines, within=60)
    assert lines == ["waiting up to 60 s: there is no schema yet"]
    await migration(tmp_path).apply(empty_database)
    await waiting


async def test_wait_accepts_this_release_and_newer_that_serve_it(empty_database: str, tmp_path: Path) -> None:
    await migration(write_scripts(tmp_path), SECOND).apply(empty_database)
    for release in (FIRST, SECOND):
        await wait_for_schema(empty_database, timeout=SECONDS, release=release)
    with pytest.raises(WaitTimedOutError, match=r"the schema is at 100\.0\.0, before 100\.1\.0"):
        await wait_for_schema(empty_database, timeout=parse_duration("50ms"), release=type(FIRST)("100.1.0"))
    async with connected(empty_database) as connection:
        await connection.execute("update agent.version set min_compatible = '100.0.0'")
    with pytest.raises(
        IncompatibleError, match=rf"serves 100\.0\.0 and later; this is {re.escape(str(FIRST))}"
    ):
        await wait_for_schema(empty_database, timeout=SECONDS, release=FIRST)


async def test_a_service_may_wait_with_its_own_role(
    server: Server, database: str, empty_database: str
) -> None:
    for role in ("surelane_ingest", "surelane_worker"):
        assert (await command(as_role(database, role), "wait", "--timeout", "60s")).code == 0
    for says in ("there is no schema yet", "permission denied for database"):
        finished = await command(as_role(empty_database, "surelane_ingest"), "wait", "--timeout", "100ms")
        assert (finished.code, says in finished.progress) == (9, True)
        assert "Traceback" not in finished.progress
        name = empty_database.partition("?")[0].rpartition("/")[2]
        await server.execute(f"revoke connect on database {name} from public")


async def test_wait_never_migrates_and_can_be_interrupted(empty_database: str) -> None:
    waiting = await start(empty_database, "wait", "--timeout", "1m")
    assert waiting.stderr
    assert b"waiting up to 60 s: there is no schema yet" in await asyncio.wait_for(
        waiting.stderr.readline(), 60
    )
    waiting.terminate()
    assert (await finish(waiting)).code == 143
    assert (await state(empty_database))[0] == ()


@pytest.mark.parametrize("absent", ["no-such-host.invalid", "127.0.0.1"])
async def test_apply_waits_for_a_database_that_is_not_there_and_says_so(absent: str, tmp_path: Path) -> None:
    lines: list[str] = []
    waiting = migration(write_scripts(tmp_path), lines=lines, connect="1ms")
    with pytest.raises(UnreachableError, match="cannot connect to the database"):
        await waiting.apply(f"postgresql://surelane@{absent}:{free_port()}/surelane")
    assert [line.partition(" to the")[0] for line in lines] == ["waiting up to 0.001 s: cannot connect"]


async def test_apply_goes_on_once_the_database_is_there(empty_database: str, tmp_path: Path) -> None:
    """The server's port listens only after the command has said that it waits."""
    where = urlsplit(empty_database)
    port = free_port()
    applying = await start(
        f"postgresql://surelane:{where.password or ''}@127.0.0.1:{port}{where.path}",
        *("apply", "--scripts", write_scripts(tmp_path)),
    )
    assert applying.stderr
    assert b"waiting up to 120 s: cannot connect" in await asyncio.wait_for(applying.stderr.readline(), 60)
    async with half_open(empty_database, port):
        finished = await finish(applying)
    assert finished.code == 0, finished.progress
    assert "migrated from nothing" in finished.progress


async def test_apply_does_not_wait_for_a_server_that_refuses_it(empty_database: str, tmp_path: Path) -> None:
    lines: list[str] = []
    elsewhere = empty_database.replace(urlsplit(empty_database).path, "/no_such_database", 1)
    with pytest.raises(UnreachableError, match="no_such_database"):
        await migration(write_scripts(tmp_path), lines=lines, connect="60s").apply(elsewhere)
    assert lines == []


DOWN = "postgresql://surelane:se%40cret@127.0.0.1:{port}/surelane"
ERRORS: list[tuple[str, str, dict[str, str], int, str]] = [
    *((name, DOWN, {}, 3, "cannot connect to the database: ") for name in ("apply", "status", "plan")),
    *(
        ("apply", dsn, {}, 2, "DATABASE_URL is not a PostgreSQL URI")
        for dsn in ("secret", "mysql://host/secret", "http://[secret", "postgresql://u:secret@ss@h/db")
    ),
    ("apply", "postgresql://u@host:secret/db", {}, 2, "DATABASE_URL is not a PostgreSQL URI"),
    ("apply", "", {}, 2, "DATABASE_URL is not set"),
    *(
        ("apply", DOWN, {name: value}, 2, f"settings cannot be used: {name}: ")
        for name, value in (
            ("SURELANE_MIGRATION_LOCK_DELAY", "soon"),
            ("SURELANE_MIGRATION_LOCK_ATTEMPTS", "0"),
        )
    ),
]


@pytest.mark.parametrize(("arguments", "dsn", "settings", "code", "says"), ERRORS)
async def test_an_error_is_one_clear_line_without_secrets(
    arguments: str, dsn: str, settings: dict[str, str], code: int, says: str, tmp_path: Path
) -> None:
    settings = {"SURELANE_MIGRATION_CONNECT_TIMEOUT": "0", **settings}
    scripts = write_scripts(tmp_path)
    finished = await command(dsn.format(port=free_port()), arguments, "--scripts", scripts, **settings)
    assert (finished.code, finished.progress.startswith(f"error: {says}")) == (code, True), finished.progress
    assert finished.progress.count("\n") == 1
    assert "cret" not in finished.progress


async def test_each_outcome_has_its_exit_code(empty_database: str, tmp_path: Path) -> None:
    write_scripts(tmp_path, idempotent={"000-one.sql": "select no_such()"})
    assert (await command(empty_database, "apply", "--scripts", tmp_path)).code == 1
    await migration(write_scripts(tmp_path), SECOND).apply(empty_database)
    assert (await command(empty_database, "apply", "--scripts", tmp_path)).code == 4
    (tmp_path / "schema.txt").write_text("")
    finished = await command(empty_database, "verify", "--scripts", tmp_path)
    assert finished.code == 7
    assert f"the schema is at {SECOND}, and this release knows what {FIRST} looks like" in finished.progress
    write_scripts(tmp_path, incremental={"000-note.sql": "select 1"})
    async with connected(empty_database) as connection:
        await connection.execute("update agent.version set version = $1", str(FIRST))
    assert (await command(empty_database, "apply", "--scripts", tmp_path)).code == 7
    assert (await command(empty_database, "unknown")).code == 2
    write_scripts(tmp_path, incremental={"0001-b.sql": "select 1"})
    finished = await command(empty_database, "apply", "--scripts", tmp_path)
    assert (finished.code, finished.progress.startswith("error: incremental/0001-b.sql")) == (8, True)


async def test_a_read_only_database_is_said_to_be_one(empty_database: str, tmp_path: Path) -> None:
    separator = "&" if "?" in empty_database else "?"
    standby = f"{empty_database}{separator}options=-c%20default_transaction_read_only=on"
    finished = await command(standby, "apply", "--scripts", write_scripts(tmp_path))
    assert finished.code == 1
    assert "the database is read-only" in finished.progress
    assert (await command(standby, "status", "--scripts", tmp_path)).code == 0
