"""Write the SQL that ``apply`` would run, for a reader or an administrator. Apply nothing."""

from collections.abc import Iterator

from surelane_migrations.database import Connection, count_history, read_facts, read_history
from surelane_migrations.files import Script
from surelane_migrations.runner import ADVISORY_KEY, TABLE_LOCK, Migration
from surelane_migrations.steps import BASELINE, BOOTSTRAP, steps, version_sql


async def plan(connection: Connection, migration: Migration) -> str:
    """Return the SQL of the whole migration, or a comment if there is nothing to do.

    Raises:
        MigrationError: ``apply`` would raise it before its first statement.
    """
    header = [f"-- Database {(await read_facts(connection)).database}, {await _conversion(connection)}"]
    if await migration.nothing_to_do(connection):
        return f"{header[0]}\n-- The schema is at {migration.target}: nothing to do without --again.\n"
    bootstrapped = (await read_facts(connection)).bootstrapped
    before, comparison = await migration.compare(connection)
    header.append(f"-- From {before.version if before else 'nothing'} to {migration.target}.")
    parts = ["\n".join(header), *_transaction(migration, comparison.pending, bootstrapped)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _transaction(migration: Migration, pending: tuple[Script, ...], bootstrapped: bool) -> Iterator[str]:
    """Yield the statements of :meth:`Migration.apply`, in its order."""
    yield "begin;"
    yield f"select pg_advisory_xact_lock({ADVISORY_KEY});"
    yield f"{BASELINE}set local lock_timeout = {migration.locks.timeout_ms};"
    if not bootstrapped:
        yield BOOTSTRAP
    yield f"{TABLE_LOCK};"
    for step in steps(migration.scripts, pending, migration.target):
        text = step.script.sql.rstrip()
        end = "" if text.endswith(";") else "\n;"  # a comment may be the last line
        yield f"-- {step.script.label}\n{text}{end}\n{step.record or ''}"
    yield version_sql(migration.target, migration.min_compatible)
    yield "commit;"


async def _conversion(connection: Connection) -> str:
    """Describe the effect on history: a conversion rewrites every row of it."""
    history = await read_history(connection)
    if not history.converts:
        return f"history stays as it is ({history.form or 'none yet'})"
    version = history.installed or history.available
    rows = await count_history(connection)
    return f"history becomes a hypertable of TimescaleDB {version}, which rewrites {rows} rows"
