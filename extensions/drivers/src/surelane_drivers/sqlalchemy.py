"""The driver for SQLAlchemy's connections and sessions, over psycopg or asyncpg."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, InvalidRequestError, PendingRollbackError, SQLAlchemyError
from sqlalchemy.orm import Session, scoped_session

from surelane import calls, errors
from surelane.drivers import Driver, Row
from surelane_drivers.arguments import positional

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

_ASYNCPG, _PSYCOPG = "asyncpg", ("psycopg", "psycopg_async")


def async_driver(database: object) -> Driver | None:
    """Return the driver for an asynchronous connection or session; ``None`` on anything else."""
    from sqlalchemy.ext.asyncio import (  # noqa: PLC0415 - it needs greenlet, which synchronous programs may lack
        AsyncConnection,
        AsyncSession,
        async_scoped_session,
    )

    if isinstance(database, async_scoped_session):
        return SqlalchemyAsyncDriver(database)
    return (
        SqlalchemyAsyncDriver(lambda: database)
        if isinstance(database, AsyncConnection | AsyncSession)
        else None
    )


def sync_driver(database: object) -> Driver | None:
    """Return the driver for a synchronous connection or session; ``None`` on anything else."""
    return SqlalchemyDriver(database) if isinstance(database, Connection | Session | scoped_session) else None


class SqlalchemyAsyncDriver:
    """Calls on an asynchronous connection, or on the connection of a session's transaction."""

    def __init__(
        self, present: "Callable[[], AsyncConnection | AsyncSession] | async_scoped_session[Any]"
    ) -> None:
        """``present`` returns the connection or session to call on."""
        self._present = present

    async def fetch(self, query: str, *arguments: object) -> Sequence[Row]:
        return await self._present().run_sync(partial(_fetch, query=query, arguments=arguments))

    @asynccontextmanager
    async def transaction(self) -> "AsyncIterator[AsyncConnection | AsyncSession]":
        present = self._present()
        if present.in_transaction():
            raise errors.InvalidInput(errors.IN_TRANSACTION)
        async with present.begin():
            yield present


class SqlalchemyDriver:
    """Calls on a synchronous connection, or on the connection of a session's transaction."""

    def __init__(self, database: Connection | Session | scoped_session[Any]) -> None:
        self._database = database

    async def fetch(self, query: str, *arguments: object) -> Sequence[Row]:
        return _fetch(self._database, query, arguments)

    @contextmanager
    def transaction(self) -> Iterator[Connection | Session | scoped_session[Any]]:
        try:
            begun = self._database.begin()
        except InvalidRequestError:
            raise errors.InvalidInput(errors.IN_TRANSACTION) from None
        with begun:
            yield self._database


def _fetch(
    database: Connection | Session | scoped_session[Any], query: str, arguments: tuple[object, ...]
) -> Sequence[Row]:
    uncertain = False
    try:
        connection = database if isinstance(database, Connection) else database.connection()
        dialect = connection.dialect
        if dialect.name != "postgresql" or dialect.driver not in (_ASYNCPG, *_PSYCOPG):
            raise errors.UnsupportedConnection(
                f"SQLAlchemy over {dialect.name}+{dialect.driver}: the queue needs postgresql+psycopg or"
                " postgresql+asyncpg"
            )
        query = query if dialect.driver == _ASYNCPG else positional(query)
        uncertain = bool(getattr(connection.connection.dbapi_connection, "autocommit", False))
        return connection.exec_driver_sql(query, arguments).mappings().all()
    except (SQLAlchemyError, UnicodeError, *calls.DRIVER_ERRORS) as error:
        found = _driver_error(error)
        raise _translated(found, uncertain=uncertain) from found


def _driver_error(error: Exception) -> Exception:
    """Return the driver's error that SQLAlchemy has wrapped: over asyncpg twice. Its own quotes the arguments."""
    found = error.orig if isinstance(error, DBAPIError) else error
    cause = found.__cause__ if found is not None else None
    if isinstance(cause, calls.DRIVER_ERRORS):
        return cause
    return found if isinstance(found, Exception) else error


def _translated(error: Exception, *, uncertain: bool) -> errors.SurelaneError:
    if isinstance(error, PendingRollbackError):
        return errors.TransactionAborted()
    if isinstance(error, calls.DRIVER_ERRORS):
        return calls.translated(error, uncertain=uncertain)
    if isinstance(error, SQLAlchemyError):
        return errors.DatabaseUnavailable(f"{type(error).__name__}: {error}")
    translated: Callable[..., errors.SurelaneError] = import_module("surelane_drivers.psycopg").translated
    return translated(error, uncertain=uncertain)
