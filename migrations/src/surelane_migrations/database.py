"""Connect to the database, and read its facts before anything is changed."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import asyncpg

from surelane_migrations import errors
from surelane_migrations.common.connecting import Connection, DatabaseUriError, connect
from surelane_migrations.files import ScriptStatus
from surelane_migrations.version import Version

Report = Callable[[str], None]
"""A function that takes one line of progress."""

APPLICATION_NAME = "surelane-migrations"
CONNECT_TIMEOUT = 10.0

UNREACHABLE = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.TooManyConnectionsError,
    asyncpg.InternalClientError,
)
"""Errors of a database that is away, is going away or coming back, or refuses us."""

_ABSENT = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CannotConnectNowError,
)
"""Errors of connecting while a server is not up yet. A refused password or certificate is not one of them."""

_PAUSE = 1.0

# The extension's settings exist only if the server loaded it at its start. If its files are there but not
# loaded, `create extension` ends the session.
_FACTS = """
with relation as
( select c.oid, c.relname, c.relkind from pg_class c join pg_namespace n on n.oid = c.relnamespace
  where nspname = 'agent'
)
, ours as
( select from relation join pg_attribute on attrelid = relation.oid where relkind = 'r'
  and (relname, attname) in (('version', 'min_compatible'), ('migration', 'checksum'))
)
, others (oid, name) as
( select oid, relname::text from relation where relkind in ('r', 'p', 'v', 'm', 'f', 'c', 'S')
  union all
  select p.oid, proname::text from pg_proc p join pg_namespace n on n.oid = p.pronamespace where nspname = 'agent'
  and not exists (select from pg_depend d where d.objid = p.oid and d.deptype = 'e')
)
select current_user::text as role, current_database()::text as database, getdatabaseencoding()::text as encoding
, (select pg_get_userbyid(nspowner) from pg_namespace where nspname = 'agent') as owner
, has_database_privilege(current_database(), 'create') as may_create
, (select count(*) = 2 from ours) as bootstrapped
, (select string_agg(name, ', ' order by name) from (
     select o.name from others o where not exists (select from ours) order by 1 limit 3) as o) as strangers
, exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace
   where nspname = 'agent' and relname = 'event_hist') as has_history
, (select extversion from pg_extension where extname = 'timescaledb') as timescaledb
, (select default_version from pg_available_extensions where name = 'timescaledb'
   and current_setting('timescaledb.max_background_workers', true) is not null) as next_timescaledb
"""
# An owner reads the table; a service's role may only call the function.
_VERSIONS = {
    True: "select version, min_compatible from agent.version",
    False: "select version, min_compatible from agent.schema_version()",
}
_MAY_READ = "select has_table_privilege(to_regclass('agent.version'), 'select')"
_APPLIED = "select file_name, version, applied_at, checksum from agent.migration order by file_name"


@dataclass(frozen=True)
class SchemaVersion:
    """The release that a schema is at, and the oldest release whose services work on it."""

    version: Version
    min_compatible: Version


@dataclass(frozen=True)
class Facts:
    """Our role, the schema's owner (``None`` if there is no schema yet), and TimescaleDB's version if it is installed.

    ``strangers`` names objects in a schema agent that is another program's. ``next_timescaledb`` is the version that a
    migration may install.
    """

    role: str
    database: str
    encoding: str
    owner: str | None
    may_create: bool
    bootstrapped: bool
    strangers: str | None
    has_history: bool
    timescaledb: str | None
    next_timescaledb: str | None


@asynccontextmanager
async def connected(dsn: str, answers_within: float | None = None) -> AsyncIterator[Connection]:
    """Open a connection for the length of the block.

    Args:
        dsn: any libpq URI.
        answers_within: seconds for connecting and for each statement; ``None`` sets no limit for a statement.

    Raises:
        SettingsError: ``dsn`` cannot be read.
        UnreachableError: no connection can be made, or it is lost before the end.
        ForbiddenError: this role may not do what the block asks for.
    """
    connection = await _connect(dsn, answers_within)
    try:
        yield connection
    except UNREACHABLE as error:
        raise errors.UnreachableError(
            f"the connection to the database was lost: {_one_line(error)}. Nothing is left halfway: unless "
            "it was lost during the commit, nothing was applied. Run the command again; it finds out."
        ) from error
    except asyncpg.InsufficientPrivilegeError as error:
        raise errors.ForbiddenError(
            f"this role lacks a privilege: {_one_line(error)}. Nothing was applied. Connect as the schema's owner. "
            "To wait, a role needs membership in agent_ingest or agent_worker."
        ) from error
    except asyncpg.PostgresError as error:
        raise errors.MigrationError(
            f"the database refused: {_one_line(error)} ({error.sqlstate}). Nothing was applied."
        ) from error
    finally:
        try:
            await connection.close(timeout=5)
        except UNREACHABLE:
            connection.terminate()


async def keep_trying(look: Callable[[float], Awaitable[None]], within: timedelta, report: Report) -> None:
    """Call ``look`` every second, with the seconds that it may take, until it raises no AbsentError.

    Raises:
        AbsentError: the time is up.
    """
    deadline = time.monotonic() + within.total_seconds()
    reported = ""
    while True:
        try:
            return await look(max(1.0, deadline - time.monotonic()))
        except errors.AbsentError as error:
            if within and str(error) != reported:
                reported = str(error)
                report(f"waiting up to {within.total_seconds():g} s: {reported}")
            left = deadline - time.monotonic()
            if left <= 0:
                raise
            await asyncio.sleep(min(_PAUSE, left))


async def knock(dsn: str, answers_within: float) -> None:
    """Raise an error if the server takes no connection: AbsentError where it may still be starting."""
    async with connected(dsn, answers_within):
        pass


_SETTINGS = {
    "application_name": APPLICATION_NAME,
    # A migration is one transaction, in which this process reads and compares.
    **dict.fromkeys(("idle_in_transaction_session_timeout", "idle_session_timeout"), "0"),
    # With less, sorting needs temporary files, which a server may forbid.
    "work_mem": "4MB",
}


async def _connect(dsn: str, answers_within: float | None) -> Connection:
    try:
        return await connect(
            dsn,
            timeout=min(CONNECT_TIMEOUT, answers_within or CONNECT_TIMEOUT),
            command_timeout=answers_within,
            statement_cache_size=0,  # every statement runs once, and a transaction pooler may be in between
            settings=_SETTINGS,
        )
    except (asyncpg.ClientConfigurationError, ValueError) as error:
        # The driver's reason may quote a part of the password.
        known = isinstance(error, DatabaseUriError)
        raise errors.MigrationSettingsError(
            str(error) if known else "DATABASE_URL cannot be used: see its TLS files"
        ) from None
    except (*UNREACHABLE, asyncpg.PostgresError) as error:
        absent = isinstance(error, _ABSENT) and not isinstance(error, ssl.SSLError)
        raise (errors.AbsentError if absent else errors.UnreachableError)(
            f"cannot connect to the database: {_one_line(error)}. Check that it is up and DATABASE_URL right."
        ) from error


def _one_line(error: BaseException) -> str:
    """Return the server's own message if it sent one. The driver's message for a closed connection says less."""
    cause: BaseException | None = error
    while cause and not isinstance(cause, asyncpg.PostgresError):
        cause = cause.__context__
    return " ".join(str(cause or error).split()) or type(error).__name__


async def read_facts(connection: Connection) -> Facts:
    """Read our role and the schema's owner from catalogs that every role may read."""
    (row,) = await connection.fetch(_FACTS)
    return Facts(**dict(row))


async def read_version(connection: Connection) -> SchemaVersion | None:
    """Read the schema's version without a lock; ``None`` if there is no schema yet.

    Raises:
        MigrationError: the stored text is not a version.
    """
    may_read = await connection.fetchval(_MAY_READ)  # null without the table
    row = None if may_read is None else await connection.fetchrow(_VERSIONS[may_read])
    try:
        return SchemaVersion(*map(Version, row.values())) if row else None
    except ValueError as error:
        raise errors.MigrationError(
            f"agent.version cannot be understood: {error}; correct it to the release applied"
        ) from None


async def read_applied(connection: Connection) -> tuple[ScriptStatus, ...]:
    """Read the incremental scripts applied so far."""
    return tuple(ScriptStatus(**dict(row)) for row in await connection.fetch(_APPLIED))


async def history_form(connection: Connection, facts: Facts) -> str | None:
    """Return whether history is a ``table`` or a ``hypertable``; ``None`` if absent."""
    if not facts.has_history:
        return None
    return "hypertable" if await connection.fetchval("select agent.history_is_hypertable()") else "table"
