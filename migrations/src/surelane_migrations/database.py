"""Connect to the database, and read its facts before anything is changed."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg

from surelane_migrations import errors
from surelane_migrations.files import Applied
from surelane_migrations.version import Version

if TYPE_CHECKING:  # generic for the type checker alone
    Connection = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection

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

_FACTS = """
select current_user::text as role, current_database()::text as database
, (select pg_get_userbyid(nspowner) from pg_namespace where nspname = 'agent') as owner
, has_database_privilege(current_database(), 'create') as may_create
, (select count(*) = 2 from pg_class c join pg_namespace n on n.oid = c.relnamespace
   where nspname = 'agent' and relkind = 'r' and relname in ('version', 'migration')) as bootstrapped
"""
# An owner reads the table; a service's role may only call the function.
_VERSIONS = (
    "select version, min_compatible from agent.version",
    "select version, min_compatible from agent.schema_version()",
)
# The extension's settings exist only if the server loaded it at its start. If its files are there but not
# loaded, `create extension` ends the session.
_TIMESCALEDB = """
select (select extversion from pg_extension where extname = 'timescaledb') as installed
, (select default_version from pg_available_extensions where name = 'timescaledb') as available
, current_setting('timescaledb.max_background_workers', true) is not null as loaded
, exists (select from pg_class where relnamespace = (select oid from pg_namespace where nspname = 'agent')
  and relname = 'event_hist') as history
"""
_IS_HYPERTABLE = """
select exists (select from timescaledb_information.hypertables
  where hypertable_schema = 'agent' and hypertable_name = 'event_hist')
"""
_APPLIED = "select file_name, version, applied_at, checksum from agent.migration order by file_name"


@dataclass(frozen=True)
class SchemaVersion:
    """The release that a schema is at, and the oldest release whose services work on it."""

    version: Version
    min_compatible: Version


@dataclass(frozen=True)
class Facts:
    """Our role and the schema's owner. ``owner`` is ``None`` if there is no schema yet."""

    role: str
    database: str
    owner: str | None
    may_create: bool
    bootstrapped: bool


@dataclass(frozen=True)
class History:
    """The form of history and TimescaleDB's versions. ``form`` is ``table``, ``hypertable``, or ``None`` if absent."""

    form: str | None
    installed: str | None
    available: str | None

    @property
    def converts(self) -> bool:
        """Whether the next migration turns the table into a hypertable."""
        return self.form == "table" and bool(self.installed or self.available)


@asynccontextmanager
async def connected(dsn: str, answers_within: float | None = None) -> AsyncIterator[Connection]:
    """Open a connection for the length of the block.

    Args:
        dsn: any libpq URI.
        answers_within: seconds for connecting and for each statement; ``None`` sets no limit for a statement.

    Raises:
        SettingsError: ``dsn`` cannot be read.
        UnreachableError: no connection can be made, or it is lost before the end.
    """
    connection = await _connect(dsn, answers_within)
    try:
        yield connection
    except UNREACHABLE as error:
        raise errors.UnreachableError(
            f"the connection to the database was lost: {_one_line(error)}. Nothing is left halfway: unless "
            "it was lost during the commit, nothing was applied. Run the command again; it finds out."
        ) from error
    except asyncpg.PostgresError as error:
        raise errors.MigrationError(
            f"the database refused: {_one_line(error)} ({error.sqlstate}). Nothing was applied."
        ) from error
    finally:
        await _close(connection)


async def wait_until_there(dsn: str, within: timedelta, report: Callable[[str], None]) -> None:
    """Return once the server takes a connection. Wait only while it may still be starting.

    Raises:
        SettingsError: ``dsn`` cannot be read.
        UnreachableError: the time is up, or the server refuses us, and waiting would not help.
    """
    deadline = time.monotonic() + within.total_seconds()
    said = False
    while True:
        try:
            connection = await _connect(dsn, max(1.0, deadline - time.monotonic()))
        except errors.AbsentError as error:
            if within and not said:
                report(f"waiting up to {within.total_seconds():g} s: {error}")
                said = True
            left = deadline - time.monotonic()
            if left <= 0:
                raise
            await asyncio.sleep(min(_PAUSE, left))
        else:
            await _close(connection)
            return


async def _connect(dsn: str, answers_within: float | None) -> Connection:
    try:
        return await asyncpg.connect(
            dsn,
            timeout=min(CONNECT_TIMEOUT, answers_within or CONNECT_TIMEOUT),
            command_timeout=answers_within,
            statement_cache_size=0,  # every statement runs once, and a transaction pooler may be in between
            server_settings={"application_name": APPLICATION_NAME},
        )
    except (asyncpg.ClientConfigurationError, ValueError):
        # Leave the reason out: it may quote a part of the password, the usual cause of a malformed URI.
        raise errors.SettingsError(
            "DATABASE_URL is not a PostgreSQL URI: write postgresql://user:password@host:5432/database, "
            "special characters in the password as %XX"
        ) from None
    except (*UNREACHABLE, asyncpg.PostgresError) as error:
        absent = isinstance(error, _ABSENT) and not isinstance(error, ssl.SSLError)
        raise (errors.AbsentError if absent else errors.UnreachableError)(
            f"cannot connect to the database: {_one_line(error)}. Check that it is up and DATABASE_URL right."
        ) from error


async def _close(connection: Connection) -> None:
    try:
        await connection.close(timeout=5)
    except UNREACHABLE:
        connection.terminate()


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
        ForbiddenError: this role may not read it.
        MigrationError: the stored text is not a version.
    """
    refusal: asyncpg.PostgresError | None = None
    for query in _VERSIONS:
        try:
            row = await connection.fetchrow(query)
        except (asyncpg.UndefinedTableError, asyncpg.UndefinedFunctionError, asyncpg.InvalidSchemaNameError):
            continue
        except asyncpg.InsufficientPrivilegeError as error:
            refusal = error
            continue
        return _schema_version(row) if row else None
    if refusal:
        raise errors.ForbiddenError(
            f"this role may not read the schema's version: {refusal}. Connect as the schema's owner, "
            "or grant the role membership in agent_ingest or agent_worker."
        )
    return None


def _schema_version(row: asyncpg.Record) -> SchemaVersion:
    try:
        return SchemaVersion(Version(row["version"]), Version(row["min_compatible"]))
    except ValueError as error:
        raise errors.MigrationError(
            f"agent.version cannot be understood: {error}; correct it to the release applied"
        ) from None


async def read_applied(connection: Connection) -> tuple[Applied, ...]:
    """Read the incremental scripts applied so far; none if there is no schema yet.

    Raises:
        ForbiddenError: this role may not read ``agent.migration``.
    """
    try:
        return tuple(Applied(**dict(row)) for row in await connection.fetch(_APPLIED))
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        return ()
    except asyncpg.InsufficientPrivilegeError as error:
        raise errors.ForbiddenError(
            f"this role may not read agent.migration: {error}. Connect as the schema's owner."
        ) from None


async def read_history(connection: Connection) -> History:
    """Read the state of the extension and of ``agent.event_hist``."""
    row = await connection.fetchrow(_TIMESCALEDB)
    if row is None:
        return History(None, None, None)
    hypertable = bool(row["installed"]) and await connection.fetchval(_IS_HYPERTABLE)
    form = ("hypertable" if hypertable else "table") if row["history"] else None
    return History(form, row["installed"], row["available"] if row["loaded"] else None)
