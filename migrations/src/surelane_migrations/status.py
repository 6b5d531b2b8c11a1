"""Look at a database's schema and change nothing: report it, compare it with this release's, wait until it serves."""

import asyncio
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from surelane_migrations import database, errors
from surelane_migrations.files import PACKAGED, Applied, Comparison, Scripts, compare
from surelane_migrations.runner import Report, silent
from surelane_migrations.version import RELEASE, Version


@dataclass(frozen=True)
class ScriptStatus:
    """An incremental script as recorded. ``state`` is applied, pending, changed or vanished."""

    file_name: str
    state: str
    version: str | None = None
    applied_at: datetime | None = None


@dataclass(frozen=True)
class Status:
    """The report. ``state`` is absent, older, current, newer, or different if scripts and database disagree."""

    state: str
    database: str
    server_version: str
    role: str
    owner: str | None
    version: str | None
    min_compatible: str | None
    release: str
    history: str | None
    timescaledb: str | None
    incremental: tuple[ScriptStatus, ...]
    idempotent: tuple[str, ...]

    def as_text(self) -> str:
        """Return a summary, then one line per incremental script."""
        version = f"{self.version} (services from {self.min_compatible} on)" if self.version else "none yet"
        timescaledb = f"TimescaleDB {self.timescaledb}" if self.timescaledb else "no TimescaleDB"
        lines = [
            f"database   {self.database}, PostgreSQL {self.server_version}, {timescaledb}",
            f"schema     {version}; owner {self.owner or 'none yet'}, connected as {self.role}",
            f"release    {self.release}: {self.state}",
            f"history    {self.history or 'none yet'}",
            f"idempotent {len(self.idempotent)} scripts, run on every migration",
            *(_script_line(script) for script in self.incremental),
        ]
        return "\n".join(lines)


async def read_status(
    connection: database.Connection, scripts: Scripts, release: Version = RELEASE
) -> Status:
    """Read the status. Change and lock nothing.

    Raises:
        ForbiddenError: this role may not read the runner's tables.
    """
    facts = await database.read_facts(connection)
    found = await database.read_version(connection) if facts.owner else None
    applied = await database.read_applied(connection) if facts.bootstrapped else ()
    comparison = compare(scripts, applied)
    history = await database.read_history(connection)
    return Status(
        state=_state(found, comparison, release),
        database=facts.database,
        server_version=await connection.fetchval("show server_version"),
        role=facts.role,
        owner=facts.owner,
        version=str(found.version) if found else None,
        min_compatible=str(found.min_compatible) if found else None,
        release=str(release),
        history=history.form,
        timescaledb=history.installed,
        incremental=tuple(_script_states(applied, comparison)),
        idempotent=tuple(script.file_name for script in scripts.idempotent),
    )


def _state(found: database.SchemaVersion | None, comparison: Comparison, release: Version) -> str:
    if found is None:
        return "absent"
    if found.version > release:
        return "newer"
    if comparison.changed or comparison.vanished or (comparison.pending and found.version == release):
        return "different"
    return "current" if found.version == release else "older"


def _script_states(applied: tuple[Applied, ...], comparison: Comparison) -> list[ScriptStatus]:
    states = dict.fromkeys(comparison.changed, "changed") | dict.fromkeys(comparison.vanished, "vanished")
    known = [
        ScriptStatus(row.file_name, states.get(row.file_name, "applied"), row.version, row.applied_at)
        for row in applied
    ]
    return known + [ScriptStatus(script.file_name, "pending") for script in comparison.pending]


def _script_line(script: ScriptStatus) -> str:
    when = f"  by {script.version} at {script.applied_at:%Y-%m-%d %H:%M:%S %Z}" if script.applied_at else ""
    return f"{script.state:<10} {script.file_name}{when}"


CATALOG = Path(__file__).with_name("catalog.sql").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Differences:
    """Objects that are missing from the database, and objects that should not be there."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


async def describe_schema(connection: database.Connection) -> tuple[str, ...]:
    """Return one line per column, constraint, index, trigger, function and grant of the schema."""
    async with connection.transaction(readonly=True):
        # PostgreSQL writes a schema's name in a definition if that schema is not on the path.
        await connection.execute("set local search_path = pg_catalog")
        return tuple(row["line"] for row in await connection.fetch(CATALOG))


def expected_schema(directory: Path = PACKAGED) -> tuple[str, ...]:
    """Return the lines of ``schema.txt``: the objects that the scripts create.

    Raises:
        ScriptsError: the file cannot be read.
    """
    try:
        text = (directory / "schema.txt").read_text(encoding="utf-8")
    except OSError as error:
        raise errors.ScriptsError(f"{directory / 'schema.txt'} cannot be read: {error.strerror}") from error
    return tuple(line for line in text.splitlines() if line and not line.startswith("#"))


async def verify(
    connection: database.Connection, scripts: Scripts, expected: tuple[str, ...], release: Version = RELEASE
) -> Differences:
    """Compare the database with ``schema.txt``. Change nothing.

    Raises:
        DifferentError: the schema is not at ``release``, or its incremental scripts are not this release's.
    """
    found = await database.read_version(connection)
    if found is None or found.version != release:
        raise errors.DifferentError(
            f"the schema is at {found.version if found else 'no version'}, and this release knows what "
            f"{release} looks like. Run apply, or verify with the release that was applied."
        )
    comparison = compare(scripts, await database.read_applied(connection))
    comparison.require_unchanged()
    if comparison.pending:
        raise errors.DifferentError(
            f"incremental/{comparison.pending[0].file_name} was not applied; run apply --again"
        )
    actual = await describe_schema(connection)
    return Differences(
        missing=tuple(sorted(set(expected) - set(actual))),
        unexpected=tuple(sorted(set(actual) - set(expected))),
    )


_PAUSE = 1.0


async def wait_for_schema(
    dsn: str, *, timeout: timedelta, release: Version = RELEASE, report: Report = silent
) -> None:
    """Return once the schema is at ``release`` or newer. The database need not be there yet.

    Raises:
        IncompatibleError: the schema no longer serves this release, and waiting would not help.
        SettingsError: ``dsn`` cannot be read.
        WaitTimedOutError: the time is up; the message says why services cannot start yet.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    reported = None
    while (reason := await _reason_to_wait(dsn, release, deadline)) is not None:
        if reason != reported:
            report(f"waiting: {reason}")
            reported = reason
        left = deadline - time.monotonic()
        if left <= 0:
            raise errors.WaitTimedOutError(
                f"gave up after {timeout.total_seconds():g} s: {reason}. The migration has to be applied "
                "first; see what it says."
            )
        await asyncio.sleep(min(_PAUSE, left))


async def _reason_to_wait(dsn: str, release: Version, deadline: float) -> str | None:
    """Return why services of ``release`` cannot start yet; ``None`` if they can."""
    try:
        async with database.connected(
            dsn, answers_within=max(1.0, deadline - time.monotonic())
        ) as connection:
            found = await database.read_version(connection)
    except errors.SettingsError:
        raise
    except errors.MigrationError as error:
        return str(error)
    if found is None:
        return "there is no schema yet"
    if found.min_compatible > release:
        raise errors.IncompatibleError(
            f"the schema is at {found.version} and serves {found.min_compatible} and later; this is "
            f"{release}. Deploy a later one."
        )
    return f"the schema is at {found.version}, before {release}" if found.version < release else None
