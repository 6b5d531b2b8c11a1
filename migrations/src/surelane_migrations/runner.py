"""Apply a release's scripts in one transaction, under two locks, as the schema's owner; or write the SQL of that.

If a script fails or the process is killed, the database is as it was before. The advisory lock excludes other runners,
even before there is a schema. The lock of ``agent.migration`` excludes programs that do not know the advisory lock.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from surelane_migrations import database, errors, files
from surelane_migrations.files import Comparison, Script, Scripts
from surelane_migrations.migration_settings import LockSettings
from surelane_migrations.version import MIN_COMPATIBLE, RELEASE, Version

SEARCH_PATH = "agent, pg_temp"

BASELINE = f"""\
-- Scripts run the same under all settings of role and database, and find no object in public.
set local search_path = {SEARCH_PATH};
set local statement_timeout = 0;
-- The runner is never idle for long. After a minute without it, the server releases the locks.
set local idle_in_transaction_session_timeout = '1min';
set local client_min_messages = notice;
set local check_function_bodies = on;
"""

# PL/pgSQL executes the script, because the server refuses `commit` and `rollback` there. In a script sent directly,
# a stray `commit` would make half a migration permanent.
_PREPARE = "select set_config('surelane.script', $1, true), set_config('search_path', $2, true)"
_EXECUTE = "do $$ begin execute current_setting('surelane.script'); end $$"

BOOTSTRAP = Path(__file__).with_name("bootstrap.sql").read_text(encoding="utf-8")

ADVISORY_KEY = 31321898691465844

_HOLDERS = """
select l.pid, a.application_name, a.usename, host(a.client_addr) as address, a.xact_start
from pg_locks l left join pg_stat_activity a on a.pid = l.pid
where l.granted and l.database = (select oid from pg_database where datname = current_database())
"""
_HOLDER = f"""{_HOLDERS}
and l.locktype = 'advisory' and l.objsubid = 1 and ((l.classid::int8 << 32) | l.objid::int8) = $1
"""
_TABLE_HOLDER = f"""{_HOLDERS}
and l.locktype = 'relation' and l.pid <> pg_backend_pid()
and l.mode not in ('AccessShareLock', 'RowShareLock') and l.relation = to_regclass('agent.migration')
limit 1
"""
TRY_ADVISORY_LOCK = "select pg_try_advisory_xact_lock($1)"
"""It does not wait. The lock is released when the transaction ends, in any way."""
TABLE_LOCK = "lock table agent.migration in exclusive mode"
"""It locks against everything but reading, and waits for ``lock_timeout`` at most."""


async def table_locked(connection: database.Connection, settings: LockSettings) -> errors.LockedError:
    """Return the error for a table lock that timed out; it names the session that has the lock, if still there."""
    holder = _describe(await connection.fetchrow(_TABLE_HOLDER))
    return errors.LockedError(
        f"agent.migration was locked for {settings.timeout.total_seconds():g} s by {holder}. Nothing was "
        "applied. End that session, or raise SURELANE_MIGRATION_LOCK_TIMEOUT, and run this again."
    )


def _describe(row: asyncpg.Record | None) -> str:
    if row is None:
        return "a session that has just gone"
    since = (
        f"{row['xact_start']:%Y-%m-%d %H:%M:%S %Z}" if row["xact_start"] else "a time hidden from this role"
    )
    address = f" from {row['address']}" if row["address"] else ""
    name = row["application_name"] or "no application name"
    return f"process {row['pid']} ({name}, role {row['usename'] or 'hidden'}{address}, since {since})"


OLDEST_SERVER = 16
"""The oldest supported major version of PostgreSQL."""
Report = Callable[[str], None]
"""A function that takes one line of progress."""

# Otherwise the session of a killed runner would finish a long script first. Some platforms do not support this check.
_NOTICE_LOST_CLIENT = """
do $$ begin set local client_connection_check_interval = '1s'; exception when others then null; end $$
"""


def steps(
    scripts: Scripts, pending: Iterable[Script], target: Version
) -> Iterator[tuple[Script, str | None]]:
    """Yield pending incremental scripts, each with the statement that records it, then every idempotent one."""
    for script in pending:
        yield script, record_sql(script, target)
    for script in scripts.idempotent:
        yield script, None


def record_sql(script: Script, target: Version) -> str:
    """Return the statement that records an incremental script. None of the three values can contain a quote."""
    return (
        "insert into agent.migration (file_name, version, checksum) "  # noqa: S608
        f"values ('{script.file_name}', '{target}', '{script.checksum}');"
    )


def version_sql(target: Version, min_compatible: Version) -> str:
    return (
        "insert into agent.version (version, min_compatible)\n"
        f"values ('{target}', '{min_compatible}')\n"
        "on conflict ((true))\n"
        "do update set version = excluded.version, min_compatible = excluded.min_compatible;"
    )


async def run_script(connection: database.Connection, script: Script) -> None:
    """Execute all statements of a script.

    Raises:
        DeadlockError: a statement and another session waited for each other.
        LockedError: a statement waited for a table longer than ``lock_timeout``.
        MigrationError: a statement failed; the message has the script, the reason and, where known, the line.
    """
    await connection.execute(_PREPARE, script.sql, SEARCH_PATH)
    try:
        await connection.execute(_EXECUTE)
    except database.UNREACHABLE:
        raise
    except asyncpg.LockNotAvailableError as error:
        raise errors.LockedError(
            f"{script.label} waited too long for a lock ({error}). Nothing was applied. Find the long "
            "transaction in pg_stat_activity, run this again at a quieter hour, or raise "
            "SURELANE_MIGRATION_LOCK_TIMEOUT."
        ) from None
    except asyncpg.DeadlockDetectedError:
        raise errors.DeadlockError(
            f"{script.label} and a running service waited for each other's locks. Nothing was applied; run this "
            "again."
        ) from None
    except asyncpg.PostgresError as error:
        raise errors.MigrationError(f"{script.label} failed{_explain(script, error)}") from error


def _explain(script: Script, error: asyncpg.PostgresError) -> str:
    text = f": {error.args[0]} ({error.sqlstate}). Nothing was applied; correct the cause and run this again."
    if error.sqlstate == "0A000" and "transaction commands" in str(error.args[0]):
        text = ": it begins or ends a transaction. A migration is one transaction; take that statement out."
    details = [detail for detail in (error.detail, error.hint) if detail]
    return _line(script, error) + text + "".join(f"\n  {detail}" for detail in details)


def _line(script: Script, error: asyncpg.PostgresError) -> str:
    """Return the line of an error, if the server gave a position in the script and not in a function's body."""
    position = error.internal_position
    if not position or error.internal_query != script.sql:
        return ""
    return f" at line {script.sql.count(chr(10), 0, int(position) - 1) + 1}"


@contextmanager
def show_notices(connection: database.Connection, report: Report) -> Iterator[None]:
    """Report notices and warnings of scripts, except those about objects that exist already."""

    def listen(_connection: object, message: asyncpg.PostgresLogMessage) -> None:
        if not str(message.message).endswith(", skipping"):
            report(f"  {(message.severity_en or 'notice').lower()}: {message.message}")

    connection.add_log_listener(listen)
    try:
        yield
    finally:
        connection.remove_log_listener(listen)


@dataclass(frozen=True)
class Outcome:
    """The result of a migration: the versions before and after, and the number of scripts that ran."""

    before: Version | None
    after: Version
    incremental: int = 0
    idempotent: int = 0
    seconds: float = 0.0

    @property
    def migrated(self) -> bool:
        return self.idempotent > 0


def silent(_line: str) -> None:
    """Discard a line of progress."""


@dataclass(frozen=True)
class Migration:
    """Bring a database from its current version to ``target``.

    ``again`` runs it even if the version is equal. Idempotent scripts then restore functions and grants that were
    changed by hand, and history becomes a hypertable if TimescaleDB was added.
    """

    scripts: Scripts
    target: Version = RELEASE
    min_compatible: Version = MIN_COMPATIBLE
    locks: LockSettings = field(default_factory=LockSettings)
    again: bool = False
    report: Report = silent

    async def apply(self, dsn: str) -> Outcome:
        """Migrate. Wait for a database that is not there yet, and for another runner if there is one.

        Raises:
            MigrationError: the migration failed; its subclasses say why. The database is then as it was before.
        """
        await database.wait_until_there(dsn, self.locks.connect, self.report)
        for attempt in range(1, self.locks.attempts + 1):
            # Connect anew each time: a session whose `create extension` was rolled back cannot run it again.
            async with database.connected(dsn) as connection:
                try:
                    outcome = await self._attempt(connection)
                except errors.DeadlockError as error:
                    if attempt == self.locks.attempts:
                        raise
                    self.report(f"{error} Attempt {attempt} of {self.locks.attempts}; it begins anew.")
                    continue
                if outcome:
                    return outcome
                holder = _describe(await connection.fetchrow(_HOLDER, ADVISORY_KEY))
            self.report(
                f"waiting for another migration, attempt {attempt} of {self.locks.attempts}: {holder}"
            )
            if attempt < self.locks.attempts:
                await asyncio.sleep(self.locks.delay.total_seconds())
        raise errors.LockedError(
            f"another migration is still running: {holder}. Nothing was applied here. Run this again when it "
            "is done; if it hangs, end it with select pg_terminate_backend(pid)."
        )

    async def _attempt(self, connection: database.Connection) -> Outcome | None:
        """Migrate if the advisory lock is free; return ``None`` if another runner has it."""
        if await self.nothing_to_do(connection):
            return Outcome(before=self.target, after=self.target)
        try:
            async with connection.transaction(isolation="read_committed"):
                free = await connection.fetchval(TRY_ADVISORY_LOCK, ADVISORY_KEY)
                return await self._migrate(connection) if free else None
        except asyncpg.LockNotAvailableError:
            raise (await table_locked(connection, self.locks)) from None
        except asyncpg.ReadOnlySQLTransactionError:
            raise errors.MigrationError(
                "the database is read-only; set DATABASE_URL to the primary, not a standby"
            ) from None

    async def nothing_to_do(self, connection: database.Connection) -> bool:
        """Return whether the schema has this version already. Only read, and take no lock that others wait for."""
        before, comparison = await self.compare(connection)
        if self.again or before is None or before.version != self.target:
            return False
        if comparison.pending:
            raise errors.DifferentError(
                f"the schema is at {self.target} without {comparison.pending[0].label}, which was added to "
                "this release after it was applied. Give the release a new version, or run apply --again."
            )
        return True

    async def compare(
        self, connection: database.Connection
    ) -> tuple[database.SchemaVersion | None, Comparison]:
        """Compare the applied scripts with this release's. Raise if a migration is impossible."""
        _require_server(connection)
        facts = await database.read_facts(connection)
        require_owner(facts)
        if not facts.bootstrapped:
            return None, files.compare(self.scripts, ())
        before = await database.read_version(connection)
        if before and before.version > self.target:
            raise errors.IncompatibleError(
                f"the schema is at {before.version}, newer than this release, {self.target}. Nothing "
                f"was applied: run {before.version} or later; services from {before.min_compatible} on work."
            )
        comparison = files.compare(self.scripts, await database.read_applied(connection))
        comparison.require_unchanged()
        return before, comparison

    async def _migrate(self, connection: database.Connection) -> Outcome:
        """Migrate under the advisory lock. Repeat the checks first: another runner may have finished meanwhile."""
        if await self.nothing_to_do(connection):
            return Outcome(before=self.target, after=self.target)
        started = time.monotonic()
        await self._prepare(connection)
        before, comparison = await self.compare(connection)
        self.report(f"migrating from {before.version if before else 'nothing'} to {self.target}")
        await self._run(connection, comparison.pending)
        versions = before.version if before else None, self.target
        ran = len(comparison.pending), len(self.scripts.idempotent)
        return Outcome(*versions, *ran, time.monotonic() - started)

    async def _prepare(self, connection: database.Connection) -> None:
        await connection.execute(BASELINE)
        await connection.execute(_NOTICE_LOST_CLIENT)
        await connection.execute("select set_config('lock_timeout', $1, true)", str(self.locks.timeout_ms))
        if not (await database.read_facts(connection)).bootstrapped:
            await connection.execute(BOOTSTRAP)
        await connection.execute(TABLE_LOCK)

    async def _run(self, connection: database.Connection, pending: tuple[Script, ...]) -> None:
        with show_notices(connection, self.report):
            for script, record in steps(self.scripts, pending, self.target):
                started = time.monotonic()
                await run_script(connection, script)
                if record:
                    await connection.execute(record)
                self.report(f"  {script.label:<60} {(time.monotonic() - started) * 1000:6.0f} ms")
        await connection.execute(version_sql(self.target, self.min_compatible))


def _require_server(connection: database.Connection) -> None:
    found = connection.get_server_version()
    if found.major < OLDEST_SERVER:
        raise errors.IncompatibleError(
            f"PostgreSQL {found.major}.{found.minor} is older than {OLDEST_SERVER}, the oldest supported version. "
            "Nothing was applied: upgrade the server."
        )


def require_owner(facts: database.Facts) -> None:
    """Raise ForbiddenError unless this role owns the schema, or may create it if there is none.

        A superuser or a member of the owner's role could migrate too, but would create objects that the owner cannot
    change.
    """
    if facts.owner is None and not facts.may_create:
        raise errors.ForbiddenError(
            f"role {facts.role} may not create schema agent. Run as the database's owner, or have an "
            f'administrator run: grant create on database "{facts.database}" to "{facts.role}"'
        )
    if facts.owner is not None and facts.owner != facts.role:
        raise errors.ForbiddenError(
            f"schema agent belongs to {facts.owner}, not to {facts.role}; only its owner migrates it. "
            f"Set DATABASE_URL to log in as {facts.owner}."
        )


async def plan(connection: database.Connection, migration: Migration) -> str:
    """Return the SQL of the whole migration, or a comment if there is nothing to do.

    Raises:
        MigrationError: ``apply`` would raise it before its first statement.
    """
    facts = await database.read_facts(connection)
    header = f"-- Database {facts.database}, {await _conversion(connection)}"
    if await migration.nothing_to_do(connection):
        return f"{header}\n-- The schema is at {migration.target}: nothing to do without --again.\n"
    before, comparison = await migration.compare(connection)
    header += f"\n-- From {before.version if before else 'nothing'} to {migration.target}."
    parts = [header, *_transaction(migration, comparison.pending, facts.bootstrapped)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _transaction(migration: Migration, pending: tuple[Script, ...], bootstrapped: bool) -> Iterator[str]:
    """Yield the statements of :meth:`Migration.apply`, in its order."""
    yield "begin;"
    yield f"select pg_advisory_xact_lock({ADVISORY_KEY});"
    yield f"{BASELINE}set local lock_timeout = {migration.locks.timeout_ms};"
    if not bootstrapped:
        yield BOOTSTRAP
    yield f"{TABLE_LOCK};"
    for script, record in steps(migration.scripts, pending, migration.target):
        text = script.sql.rstrip()
        end = "" if text.endswith(";") else "\n;"  # a comment may be the last line
        yield f"-- {script.label}\n{text}{end}\n{record or ''}"
    yield version_sql(migration.target, migration.min_compatible)
    yield "commit;"


async def _conversion(connection: database.Connection) -> str:
    """Describe the effect on history: a conversion rewrites every row of it."""
    history = await database.read_history(connection)
    if not history.converts:
        return f"history stays as it is ({history.form or 'none yet'})"
    version = history.installed or history.available
    rows = await connection.fetchval("select count(*) from agent.event_hist")
    return f"history becomes a hypertable of TimescaleDB {version}, which rewrites {rows} rows"
