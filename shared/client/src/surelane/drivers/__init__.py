"""The drivers that a queue works over, chosen by the type of the caller's connection.

A driver's module is imported for a connection of its library alone, so no library but asyncpg needs to be installed.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from surelane.errors import UnsupportedConnection

if TYPE_CHECKING:
    import psycopg
    import sqlalchemy
    import sqlalchemy.ext.asyncio
    import sqlalchemy.orm
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.utils.connection import ConnectionProxy

    from surelane.calls import Connection, Pool, PooledConnection

    AsyncDatabase: TypeAlias = (
        Pool
        | Connection
        | PooledConnection
        | psycopg.AsyncConnection[Any]
        | sqlalchemy.ext.asyncio.AsyncConnection
        | sqlalchemy.ext.asyncio.AsyncSession
        | sqlalchemy.ext.asyncio.async_scoped_session[Any]
    )
    SyncDatabase: TypeAlias = (
        psycopg.Connection[Any]
        | sqlalchemy.Connection
        | sqlalchemy.orm.Session
        | sqlalchemy.orm.scoped_session[Any]
        | BaseDatabaseWrapper
        | ConnectionProxy
    )

_ARGUMENT = re.compile(r"\$\d+")
_MODULES = {
    "asyncpg": "surelane.calls",
    "psycopg": "surelane.drivers.psycopg",
    "sqlalchemy": "surelane.drivers.sqlalchemy",
    "django": "surelane.drivers.django",
}
"""The module with the driver for the connections of a library."""
_TAKEN = (
    "Queue takes an asyncpg connection or pool, a psycopg.AsyncConnection, or SQLAlchemy's AsyncConnection or"
    " AsyncSession; SyncQueue takes a psycopg.Connection, SQLAlchemy's Connection or Session, or Django's connection"
)


class Row(Protocol):
    """One row of an answer: a mapping of the columns' names."""

    def __getitem__(self, name: str, /) -> Any: ...  # noqa: ANN401 - any SQL type

    def values(self) -> Iterable[Any]: ...


class Driver(Protocol):
    """Calls on the caller's connection. The ``fetch`` of a synchronous one blocks, and never suspends its caller."""

    async def fetch(self, query: str, *arguments: object) -> Sequence[Row]:
        """Return all rows. The query names its arguments ``$1``, ``$2``, … in their order, each once.

        It raises errors of :mod:`surelane.errors`. The driver's error is the cause.
        """

    def transaction(self) -> Any:  # noqa: ANN401 - a context manager, asynchronous as the connection is
        """Open a transaction, and yield what a queue of it takes. ``InvalidInput``: there is one already."""


def async_driver(database: object) -> Driver:
    """Return the driver for an asynchronous connection. ``UnsupportedConnection``: the queue cannot use it."""
    return _driver(database, "Queue", "async_driver")


def sync_driver(database: object) -> Driver:
    """Return the driver for a synchronous connection. ``UnsupportedConnection``: the queue cannot use it."""
    return _driver(database, "SyncQueue", "sync_driver")


def _driver(database: object, queue: str, sort: str) -> Driver:
    """Ask the module of the connection's library. Libraries subclass each other's connections."""
    libraries = (base.__module__.partition(".")[0] for base in database.__class__.__mro__)  # as a proxy says
    for module in dict.fromkeys(_MODULES[library] for library in libraries if library in _MODULES):
        choose: Callable[[object], Driver | None] | None = getattr(import_module(module), sort, None)
        if choose is not None and (driver := choose(database)) is not None:
            return driver
    given = f"{type(database).__module__}.{type(database).__qualname__}"
    raise UnsupportedConnection(f"{queue} cannot use a {given}. {_TAKEN}")


def positional(query: str) -> str:
    """Write a query's arguments as ``%s``."""
    return _ARGUMENT.sub("%s", query)
