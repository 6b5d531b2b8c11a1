"""Look at a database's schema and change nothing: report it, compare it with this release's, wait until it serves."""

from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

from surelane_migrations import database, errors
from surelane_migrations.common.connecting import Connection
from surelane_migrations.common.schema import RECORD, describe_schema, differences, recorded
from surelane_migrations.database import Report
from surelane_migrations.files import PACKAGED, Comparison, Scripts, ScriptStatus, compare
from surelane_migrations.runner import silent
from surelane_migrations.version import RELEASE, Version


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


async def read_status(connection: Connection, scripts: Scripts) -> Status:
    """Read the status. Change and lock nothing.

    Raises:
        ForbiddenError: this role may not read the runner's tables.
    """
    facts = await database.read_facts(connection)
    found = await database.read_version(connection) if facts.owner else None
    comparison = compare(scripts, await database.read_applied(connection) if facts.bootstrapped else ())
    return Status(
        state=_state(found, comparison),
        database=facts.database,
        server_version=await connection.fetchval("show server_version"),
        role=facts.role,
        owner=facts.owner,
        version=str(found.version) if found else None,
        min_compatible=str(found.min_compatible) if found else None,
        release=str(RELEASE),
        history=await database.history_form(connection, facts),
        timescaledb=facts.timescaledb,
        incremental=comparison.scripts,
        idempotent=tuple(script.file_name for script in scripts.idempotent),
    )


def _state(found: database.SchemaVersion | None, comparison: Comparison) -> str:
    if found is None:
        return "absent"
    if found.version > RELEASE:
        return "newer"
    if comparison.problems or (comparison.pending and found.version == RELEASE):
        return "different"
    return "current" if found.version == RELEASE else "older"


def _script_line(script: ScriptStatus) -> str:
    when = f"  by {script.version} at {script.applied_at:%Y-%m-%d %H:%M:%S %Z}" if script.applied_at else ""
    return f"{script.state:<10} {script.file_name}{when}"


def expected_schema(directory: Path = PACKAGED) -> tuple[str, ...]:
    """Return the lines of ``schema.txt``: the objects that the scripts create.

    Raises:
        ScriptsError: the file cannot be read.
    """
    path = RECORD if directory == PACKAGED else directory / "schema.txt"
    try:
        return recorded(path)
    except OSError as error:
        raise errors.ScriptsError(f"{path} cannot be read: {error.strerror}") from error


async def verify(connection: Connection, scripts: Scripts, expected: tuple[str, ...]) -> list[str]:
    """Return a line for each object that is missing from the database, or should not be there. Change nothing.

    Raises:
        DifferentError: the schema is not at this release, or its incremental scripts are not this release's.
    """
    found = await database.read_version(connection)
    if found is None or found.version != RELEASE:
        raise errors.DifferentError(
            f"the schema is at {found.version if found else 'no version'}, and this release knows what "
            f"{RELEASE} looks like. Run apply, or verify with the release that was applied."
        )
    comparison = compare(scripts, await database.read_applied(connection))
    comparison.require_unchanged()
    if comparison.pending:
        raise errors.DifferentError(
            f"incremental/{comparison.pending[0].file_name} was not applied; run apply --again"
        )
    return differences(await describe_schema(connection), expected)


async def wait_for_schema(
    dsn: str, *, timeout: timedelta, release: Version = RELEASE, report: Report = silent
) -> None:
    """Return once the schema is at ``release`` or newer. The database need not be there yet.

    Raises:
        IncompatibleError: the schema no longer serves this release, and waiting would not help.
        SettingsError: ``dsn`` cannot be read.
        WaitTimedOutError: the time is up; the message says why services cannot start yet.
    """
    try:
        await database.keep_trying(partial(_require_schema, dsn, release), timeout, report)
    except errors.AbsentError as error:
        raise errors.WaitTimedOutError(
            f"gave up after {timeout.total_seconds():g} s: {error}. The migration has to be applied first; see what "
            "it says."
        ) from error


async def _require_schema(dsn: str, release: Version, answers_within: float) -> None:
    """Raise AbsentError if services of ``release`` cannot start yet."""
    try:
        async with database.connected(dsn, answers_within) as connection:
            found = await database.read_version(connection)
    except errors.MigrationSettingsError:
        raise
    except errors.MigrationError as error:
        raise errors.AbsentError(str(error)) from error
    if found is None:
        raise errors.AbsentError("there is no schema yet")
    if found.min_compatible > release:
        raise errors.IncompatibleError(
            f"the schema is at {found.version} and serves {found.min_compatible} and later; this is "
            f"{release}. Deploy a later one."
        )
    if found.version < release:
        raise errors.AbsentError(f"the schema is at {found.version}, before {release}")
