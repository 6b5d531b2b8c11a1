"""Apply a release's scripts in one transaction, under two locks, as the schema's owner; or write the SQL of that.

If a script fails or the process is killed, the database is as it was before. The advisory lock excludes other runners,
even before there is a schema. The lock of ``agent.migration`` excludes programs that do not know the advisory lock.
"""

import asyncio
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import asyncpg

from surelane_migrations import database, errors, files
from surelane_migrations.common.connecting import Connection
from surelane_migrations.database import Report
from surelane_migrations.files import Comparison, Script, Scripts
from surelane_migrations.migration_settings import LockSettings
from surelane_migrations.version import MIN_COMPATIBLE, RELEASE, Version

SEARCH_PATH = "agent, pg_temp"

BASELINE = f"""\
-- Scripts run the same under all settings of role and database, and find no object in public.
set local search_path = {SEARCH_PATH};
set local standard_conforming_strings = on;
set local statement_timeout = 0;
-- The runner is never idle for long. After a minute without it, the server releases the locks.
set local idle_in_transaction_session_timeout = '1min';
set local client_min_messages = notice;
set local check_function_bodies = on;
-- Otherwise the session of a killed runner would finish a long script first. Not all platforms support this check.
do $$ begin set local client_connection_check_interval = '1s'; exception when others then null; end $$;
-- PostgreSQL 17 brought it.
do $$ begin set local transaction_timeout = 0; exception when undefined_object then null; end $$;
"""

# PL/pgSQL executes the script, because the server refuses `commit` and `rollback` there. In a script sent directly,
# a stray `commit` would make half a migration permanent.
_PREPARE = "select set_config('surelane.script', $1, true), set_config('search_path', $2, true)"
_EXECUTE = "do $$ begin execute current_setting('surelane.script'); end $$"

BOOTSTRAP = Path(__file__).with_name("bootstrap.sql").read_text(encoding="utf-8")

ADVISORY_KEY = 31321898691465844

_HOLDERS = """
select case when l.pid is null then (
    -- It has no session. Its other lock, on its own number, leads to its name.
    select format('the prepared transaction %L (role %s, since %s)', p.gid, p.owner
    , to_char(p.prepared, 'YYYY-MM-DD HH24:MI:SS TZ'))
    from pg_locks t join pg_prepared_xacts p on p.transaction = t.transactionid
    where t.locktype = 'transactionid' and t.pid is null and t.virtualtransaction = l.virtualtransaction limit 1
) else format('process %s (%s, role %s%s, since %s)', l.pid
, coalesce(nullif(a.application_name, ''), 'no application name')
, coalesce(a.usename, 'hidden'), ' from ' || host(a.client_addr)
, coalesce(to_char(a.xact_start, 'YYYY-MM-DD HH24:MI:SS TZ'), 'a time hidden from this role')) end
from pg_locks l left join pg_stat_activity a on a.pid = l.pid
where l.granted and l.pid is distinct from pg_backend_pid()
and l.database = (select oid from pg_database where datname = current_database())
"""
_RUNNER = f"""{_HOLDERS}
and l.locktype = 'advisory' and l.objsubid = 1 and ((l.classid::int8 << 32) | l.objid::int8) = {ADVISORY_KEY}
"""
_TABLE_HOLDER = f"""{_HOLDERS}
and l.locktype = 'relation' and l.mode not in ('AccessShareLock', 'RowShareLock')
and l.relation = to_regclass('agent.migration') limit 1
"""
TABLE_LOCK = "lock table agent.migration in exclusive mode;"
"""It locks against everything but reading, and waits for ``lock_timeout`` at most."""

_RECORD = """\
insert into agent.migration (file_name, version, checksum)
values ('{script.file_name}', '{target}', '{script.checksum}');
"""
_VERSION = """\
insert into agent.version (version, min_compatible) values ('{target}', '{min_compatible}')
on conflict ((true)) do update set version = excluded.version, min_compatible = excluded.min_compatible;
"""

OLDEST_SERVER = 16
"""The oldest supported major version of PostgreSQL."""


async def run_script(connection: Connection, script: Script) -> None:
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


_FUNCTION = re.compile(r"PL/pgSQL function ([^\s(]+)")
"""What raised an error, at the beginning of its context."""


def _explain(script: Script, error: asyncpg.PostgresError) -> str:
    text = f": {error.args[0]} ({error.sqlstate}). Nothing was applied; correct the cause and run this again."
    if error.sqlstate == "0A000" and "transaction commands" in str(error.args[0]):
        text = ": it begins or ends a transaction. A migration is one transaction; take that statement out."
    details = [detail for detail in (error.detail, error.hint) if detail]
    raising = _FUNCTION.match(error.context or "")
    if raising and not raising[1].startswith(("agent.", "inline_code_block")):
        details.append(f"The function {raising[1]} raised it, which is not Surelane's.")
    return _line(script, error) + text + "".join(f"\n  {detail}" for detail in details)


def _line(script: Script, error: asyncpg.PostgresError) -> str:
    """Return the line of an error, if the server gave a position in the script and not in a function's body."""
    position = error.internal_position
    if not position or error.internal_query != script.sql:
        return ""
    return f" at line {script.sql.count(chr(10), 0, int(position) - 1) + 1}"


@dataclass(frozen=True)
class Migrated:
    """The result of a migration: the versions before and after, and the number of scripts that ran."""

    before: Version | None
    after: Version
    incremental: int = 0
    idempotent: int = 0
    seconds: float = 0.0

    @property
    def migrated(self) -> bool:
        return self.idempotent > 0

    def __str__(self) -> str:
        if not self.migrated:
            return f"the schema is at {self.after}: nothing to do"
        return (
            f"migrated from {self.before or 'nothing'} to {self.after} in {self.seconds:.1f} s: "
            f"{self.incremental} incremental and {self.idempotent} idempotent scripts"
        )


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

    async def apply(self, dsn: str) -> Migrated:
        """Migrate. Wait for a database that is not there yet, and for another runner if there is one.

        Raises:
            MigrationError: the migration failed; its subclasses say why. The database is then as it was before.
        """
        await database.keep_trying(partial(database.knock, dsn), self.locks.connect, self.report)
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
                holder = await _holder(connection, _RUNNER)
            self.report(
                f"waiting for another migration, attempt {attempt} of {self.locks.attempts}: {holder}"
            )
            if attempt < self.locks.attempts:
                await asyncio.sleep(self.locks.delay.total_seconds())
        raise errors.LockedError(
            f"another migration is still running: {holder}. Nothing was applied here. Run this again when it "
            f"is done; if it hangs, {_end_of(holder)}."
        )

    async def _attempt(self, connection: Connection) -> Migrated | None:
        """Migrate if the advisory lock is free; return ``None`` if another runner has it."""
        if await self.nothing_to_do(connection):
            return Migrated(before=self.target, after=self.target)
        try:
            async with connection.transaction(isolation="read_committed"):
                free = await connection.fetchval("select pg_try_advisory_xact_lock($1)", ADVISORY_KEY)
                return await self._migrate(connection) if free else None
        except asyncpg.LockNotAvailableError:
            holder = await _holder(connection, _TABLE_HOLDER)
            raise errors.LockedError(
                f"agent.migration was locked for {self.locks.timeout.total_seconds():g} s by {holder}."
                f" Nothing was applied. To end that lock, {_end_of(holder)}. Or raise"
                " SURELANE_MIGRATION_LOCK_TIMEOUT. Then run this again."
            ) from None
        except asyncpg.ReadOnlySQLTransactionError:
            raise errors.MigrationError(
                "the database is read-only; set DATABASE_URL to the primary, not a standby"
            ) from None

    async def nothing_to_do(self, connection: Connection) -> bool:
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

    async def compare(self, connection: Connection) -> tuple[database.SchemaVersion | None, Comparison]:
        """Compare the applied scripts with this release's. Raise if a migration is impossible."""
        facts = await database.read_facts(connection)
        require_possible(connection, facts)
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

    async def _migrate(self, connection: Connection) -> Migrated:
        """Migrate under the advisory lock. Repeat the checks first: another runner may have finished meanwhile."""
        if await self.nothing_to_do(connection):
            return Migrated(before=self.target, after=self.target)
        started = time.monotonic()
        for statement in self.opening((await database.read_facts(connection)).bootstrapped):
            await connection.execute(statement)
        before, comparison = await self.compare(connection)
        self.report(f"migrating from {before.version if before else 'nothing'} to {self.target}")
        connection.add_log_listener(self._report_notice)
        for script, statement in self.steps(comparison.pending):
            await self._execute(connection, script, statement)
        versions = before.version if before else None, self.target
        ran = len(comparison.pending), len(self.scripts.idempotent)
        return Migrated(*versions, *ran, time.monotonic() - started)

    def opening(self, bootstrapped: bool) -> Iterator[str]:
        """Yield the statements before the scripts."""
        yield f"{BASELINE}set local lock_timeout = {self.locks.timeout_ms};"
        if not bootstrapped:
            yield BOOTSTRAP
        yield TABLE_LOCK

    def steps(self, pending: tuple[Script, ...]) -> Iterator[tuple[Script | None, str]]:
        """Yield each script with its text, and the statements that record it and the version. No value has a quote."""
        for script in pending:
            yield script, script.sql
            yield None, _RECORD.format(script=script, target=self.target)
        for script in self.scripts.idempotent:
            yield script, script.sql
        yield None, _VERSION.format(target=self.target, min_compatible=self.min_compatible)

    async def _execute(self, connection: Connection, script: Script | None, statement: str) -> None:
        if script is None:
            await connection.execute(statement)
            return
        started = time.monotonic()
        await run_script(connection, script)
        self.report(f"  {script.label:<60} {(time.monotonic() - started) * 1000:6.0f} ms")

    def _report_notice(self, _connection: object, message: asyncpg.PostgresLogMessage) -> None:
        """Report a notice or warning of a script, unless it is about an object that exists already."""
        if not str(message.message).endswith(", skipping"):
            self.report(f"  {(message.severity_en or 'notice').lower()}: {message.message}")


async def _holder(connection: Connection, query: str) -> str:
    """Describe the session that has a lock."""
    return await connection.fetchval(query) or "a session that has just gone"


def _end_of(holder: str) -> str:
    """Return how to end what has a lock, once :func:`_holder` has described it."""
    if (prepared := re.match(r"the prepared transaction (E?'(?:[^']|'')*')", holder)) is not None:
        return f"end it, in this database, with rollback prepared {prepared[1]}"
    return "end it with select pg_terminate_backend(pid)"


def require_possible(connection: Connection, facts: database.Facts) -> None:
    """Raise an error if the server is too old, or this role neither owns the schema nor may create it.

    A superuser or a member of the owner's role could migrate too, but would create objects that the owner cannot
    change.
    """
    server = connection.get_server_version()
    if server.major < OLDEST_SERVER:
        raise errors.IncompatibleError(
            f"PostgreSQL {server.major}.{server.minor} is older than {OLDEST_SERVER}, the oldest supported version. "
            "Nothing was applied: upgrade the server."
        )
    if facts.encoding != "UTF8":
        raise errors.IncompatibleError(
            f"database {facts.database} has the encoding {facts.encoding}, which cannot hold all that people write; "
            "only UTF8 can. Nothing was applied: create a database for Surelane with "
            f"create database surelane owner \"{facts.role}\" encoding 'UTF8' template template0"
        )
    if facts.strangers is not None:
        raise errors.DifferentError(
            f"schema agent of database {facts.database} is another program's: it has {facts.strangers}. Nothing was "
            "applied: give Surelane a database of its own, or rename that program's schema."
        )
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


async def plan(connection: Connection, migration: Migration) -> str:
    """Return the SQL of the whole migration, or a comment if there is nothing to do.

    Raises:
        MigrationError: ``apply`` would raise it before its first statement.
    """
    facts = await database.read_facts(connection)
    header = f"-- Database {facts.database}, {await _conversion(connection, facts)}"
    if await migration.nothing_to_do(connection):
        return f"{header}\n-- The schema is at {migration.target}: nothing to do without --again.\n"
    before, comparison = await migration.compare(connection)
    header += f"\n-- From {before.version if before else 'nothing'} to {migration.target}."
    parts = [header, "begin;", f"select pg_advisory_xact_lock({ADVISORY_KEY});"]
    parts += migration.opening(facts.bootstrapped)
    parts += (_printed(script, statement) for script, statement in migration.steps(comparison.pending))
    return "\n\n".join(part.strip() for part in [*parts, "commit;"]) + "\n"


def _printed(script: Script | None, statement: str) -> str:
    if script is None:
        return statement
    text = statement.rstrip()
    end = "" if text.endswith(";") else "\n;"  # a comment may be the last line
    return f"-- {script.label}\n{text}{end}"


async def _conversion(connection: Connection, facts: database.Facts) -> str:
    """Describe the effect on history: a conversion rewrites every row of it."""
    form, version = (
        await database.history_form(connection, facts),
        facts.timescaledb or facts.next_timescaledb,
    )
    if form != "table" or version is None:
        return f"history stays as it is ({form or 'none yet'})"
    rows = await connection.fetchval("select count(*) from agent.event_hist")
    return f"history becomes a hypertable of TimescaleDB {version}, which rewrites {rows} rows"
