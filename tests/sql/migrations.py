"""Provide small script directories, the command as a process, and a database's state to the migration tests."""

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from surelane_migrations.common.schema import describe_schema
from surelane_migrations.files import discover
from surelane_migrations.migration_settings import LockSettings
from surelane_migrations.runner import Migration
from surelane_migrations.version import RELEASE, Version
from tests import forked
from tests.processes import clean_environment

FIRST = RELEASE
SECOND = Version("100.0.0")  # newer than every release

QUICK = {
    "SURELANE_MIGRATION_LOCK_DELAY": "0.2s",
    "SURELANE_MIGRATION_LOCK_ATTEMPTS": "100",
    "SURELANE_MIGRATION_LOCK_TIMEOUT": "60s",
}

_TABLES = """
select relname from pg_class where relkind = 'r' and relnamespace = to_regnamespace('agent') order by 1
"""


def write_scripts(
    directory: Path,
    *,
    incremental: Mapping[str, str] | None = None,
    idempotent: Mapping[str, str] | None = None,
) -> Path:
    """Write scripts, given as file name to SQL, beside the existing ones."""
    folders = {
        "incremental": incremental
        or {"000-note.sql": "create table agent.note (id int primary key, body text)"},
        "idempotent": idempotent or {"000-one.sql": one_returns(1)},
    }
    for folder, scripts in folders.items():
        (directory / folder).mkdir(parents=True, exist_ok=True)
        for name, sql in scripts.items():
            (directory / folder / name).write_text(sql)
    return directory


def one_returns(value: int) -> str:
    """Return a script that can run repeatedly."""
    return f"create or replace function agent.one() returns int language sql as 'select {value}'"


def migration(
    directory: Path,
    target: Version = FIRST,
    *,
    again: bool = False,
    lines: list[str] | None = None,
    **locks: Any,
) -> Migration:
    """Return the migration to release ``target`` with a directory's scripts. Progress goes to ``lines``."""
    settings = LockSettings(**{"attempts": 1, "timeout": "200ms", "delay": "20ms", **locks})
    report = (lines if lines is not None else []).append
    return Migration(discover(directory), target, FIRST, settings, again=again, report=report)


async def state(dsn: str) -> tuple[tuple[str, ...], dict[str, list[tuple[Any, ...]]]]:
    """Return all objects, grants and rows of schema agent; nothing without the schema."""
    async with connected(dsn) as connection:
        rows = {
            table: [tuple(row) for row in await connection.fetch(f'select * from agent."{table}" order by 1')]
            for (table,) in await connection.fetch(_TABLES)
        }
        return await describe_schema(connection), rows


@asynccontextmanager
async def refused(dsn: str, error: type[Exception], says: str) -> AsyncIterator[None]:
    """Check that the block raises an error that says something, and leaves the database as it was."""
    before = await state(dsn)
    with pytest.raises(error, match=says):
        yield
    assert await state(dsn) == before


@contextmanager
def server_directory() -> Iterator[Path]:
    """Make a directory for a test's own server. Each new run of pytest closes pytest's own ones to other users."""
    with tempfile.TemporaryDirectory(prefix="surelane-tests-") as directory:
        yield Path(directory)


UNCHECKED = re.compile(r"warning: the certificate of .*\n")
"""What a command says first where the server is in a container. ``tests/unit/test_connecting.py`` tries it."""


@dataclass
class Finished:
    """A finished command."""

    code: int
    output: str
    progress: str


async def start(dsn: str, *arguments: str | Path, **settings: str) -> asyncio.subprocess.Process:
    """Start ``python -m surelane_migrations``."""
    env = {**clean_environment(), "DATABASE_URL": dsn, **QUICK, **settings}
    return await forked.start("surelane_migrations", *map(str, arguments), env=env, stderr=True)


async def finish(process: asyncio.subprocess.Process) -> Finished:
    """Wait for its end. Kill it after two minutes."""
    try:
        async with asyncio.timeout(120):
            output, progress = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode is not None
    return Finished(process.returncode, output.decode(), UNCHECKED.sub("", progress.decode()))


async def command(dsn: str, *arguments: str | Path, **settings: str) -> Finished:
    """Run ``python -m surelane_migrations`` to its end."""
    return await finish(await start(dsn, *arguments, **settings))


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def becomes(connection: Connection, condition: str, *arguments: object, within: float = 60) -> None:
    """Poll a query until its one value is true.

    Raises:
        AssertionError: the time is up.
    """
    try:
        async with asyncio.timeout(within):
            while not await connection.fetchval(condition, *arguments):  # noqa: ASYNC110 - nothing to listen to
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"did not come true within {within} s: {condition}") from None


BACKENDS = """
select count(*) from pg_stat_activity where datname = current_database() and application_name = 'surelane-migrations'
"""
BLOCKED = f"{BACKENDS} and wait_event_type = 'Lock'"
