"""The driver for psycopg's connections."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from surelane.drivers import Driver, Row
from surelane.errors import IN_TRANSACTION, InvalidInput, SurelaneError, of_connection, of_server, report_of
from surelane_drivers.arguments import positional

DRIVER_ERRORS = (psycopg.Error, UnicodeError)
"""All that psycopg raises when a call fails. Text that UTF-8 cannot hold raises the second."""

_RAW = tuple(getattr(psycopg, name) for name in ("RawCursor", "AsyncRawCursor") if hasattr(psycopg, name))


def async_driver(database: object) -> Driver | None:
    """Return the driver for an asynchronous connection; ``None`` on anything else."""
    return PsycopgAsyncDriver(database) if isinstance(database, psycopg.AsyncConnection) else None


def sync_driver(database: object) -> Driver | None:
    """Return the driver for a synchronous connection; ``None`` on anything else."""
    return PsycopgDriver(database) if isinstance(database, psycopg.Connection) else None


class PsycopgAsyncDriver:
    """Calls on an asynchronous connection."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def fetch(self, query: str, *arguments: object) -> Sequence[Row]:
        with _translating(self._connection):
            async with self._connection.cursor(row_factory=dict_row) as cursor:
                await cursor.execute(_written(query, cursor), arguments)
                return await cursor.fetchall()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        _check_idle(self._connection)
        async with self._connection.transaction():
            yield self._connection


class PsycopgDriver:
    """Calls on a synchronous connection."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    async def fetch(self, query: str, *arguments: object) -> Sequence[Row]:
        with _translating(self._connection), self._connection.cursor(row_factory=dict_row) as cursor:
            cursor.execute(_written(query, cursor), arguments)
            return cursor.fetchall()

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        _check_idle(self._connection)
        with self._connection.transaction():
            yield self._connection


def _check_idle(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise InvalidInput(IN_TRANSACTION)


def _written(query: str, cursor: object) -> str:
    """Write a query's arguments as the cursor reads them: the connection may make raw ones, which read ``$1``."""
    return query if isinstance(cursor, _RAW) else positional(query)


def translated(error: Exception, *, uncertain: bool) -> SurelaneError:
    """Return our error for one of :data:`DRIVER_ERRORS`."""
    if not isinstance(error, psycopg.Error):
        return InvalidInput(f"{type(error).__name__}: {error}")
    # The primary message alone: the rest quotes the row.
    message = f"{type(error).__name__}: {error.diag.message_primary or error}"
    if error.sqlstate and error.diag.sqlstate:
        severity = error.diag.severity_nonlocalized or error.diag.severity
        diag = error.diag
        objects = diag.schema_name, diag.table_name, diag.column_name, diag.constraint_name
        report = report_of(error.sqlstate, diag.context, objects)
        return of_server(message, error.sqlstate, severity, uncertain=uncertain, report=report)
    if isinstance(error, psycopg.DataError):
        return InvalidInput(message)
    return of_connection(message, uncertain=uncertain)


@contextmanager
def _translating(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> Iterator[None]:
    uncertain = connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE
    try:
        yield
    except DRIVER_ERRORS as error:
        raise translated(error, uncertain=uncertain and not isinstance(error, UnicodeError)) from error
