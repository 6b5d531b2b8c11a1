"""Build a migration as a list of SQL texts, and run one, with a place in the script for an error."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from surelane_migrations.database import UNREACHABLE, Connection
from surelane_migrations.errors import DeadlockError, LockedError, MigrationError
from surelane_migrations.files import Script, Scripts
from surelane_migrations.version import Version

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


@dataclass(frozen=True)
class Step:
    """A script, with the statement that records it if it is incremental."""

    script: Script
    record: str | None = None


def steps(scripts: Scripts, pending: Iterable[Script], target: Version) -> Iterator[Step]:
    """Return the steps in order: pending incremental scripts, then every idempotent one."""
    for script in pending:
        yield Step(script, record_sql(script, target))
    for script in scripts.idempotent:
        yield Step(script)


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
    except UNREACHABLE:
        raise
    except asyncpg.LockNotAvailableError as error:
        raise LockedError(
            f"{script.label} waited too long for a lock ({error}). Nothing was applied. Find the long "
            "transaction in pg_stat_activity, run this again at a quieter hour, or raise "
            "SURELANE_MIGRATION_LOCK_TIMEOUT."
        ) from None
    except asyncpg.DeadlockDetectedError:
        raise DeadlockError(
            f"{script.label} and a running service waited for each other's locks. Nothing was applied; run this "
            "again."
        ) from None
    except asyncpg.PostgresError as error:
        raise MigrationError(f"{script.label} failed{_explain(script, error)}") from error


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
def show_notices(connection: Connection, report: Callable[[str], None]) -> Iterator[None]:
    """Report notices and warnings of scripts, except those about objects that exist already."""

    def listen(_connection: object, message: asyncpg.PostgresLogMessage) -> None:
        if not str(message.message).endswith(", skipping"):
            report(f"  {(message.severity_en or 'notice').lower()}: {message.message}")

    connection.add_log_listener(listen)
    try:
        yield
    finally:
        connection.remove_log_listener(listen)
