"""Report a database's schema beside this release's, for people and for programs."""

from dataclasses import dataclass
from datetime import datetime

from surelane_migrations.database import (
    Connection,
    SchemaVersion,
    read_applied,
    read_facts,
    read_history,
    read_version,
)
from surelane_migrations.files import Applied, Comparison, Scripts, compare
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


async def read_status(connection: Connection, scripts: Scripts, release: Version = RELEASE) -> Status:
    """Read the status. Change and lock nothing.

    Raises:
        ForbiddenError: this role may not read the runner's tables.
    """
    facts = await read_facts(connection)
    found = await read_version(connection) if facts.owner else None
    applied = await read_applied(connection) if facts.bootstrapped else ()
    comparison = compare(scripts, applied)
    history = await read_history(connection)
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


def _state(found: SchemaVersion | None, comparison: Comparison, release: Version) -> str:
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
