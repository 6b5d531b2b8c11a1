"""Run one script inside the migration's transaction, and report an error with its place in the script."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import asyncpg

from surelane_migrations.database import UNREACHABLE, Connection
from surelane_migrations.errors import DeadlockError, LockedError, MigrationError
from surelane_migrations.files import Script
from surelane_migrations.steps import SEARCH_PATH

# PL/pgSQL executes the script, because the server refuses `commit` and `rollback` there. In a script sent directly,
# a stray `commit` would make half a migration permanent.
_PREPARE = "select set_config('surelane.script', $1, true), set_config('search_path', $2, true)"
_EXECUTE = "do $$ begin execute current_setting('surelane.script'); end $$"


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
