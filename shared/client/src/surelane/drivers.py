"""The driver for a caller's connection: asyncpg's is here, the others come with the extension ``surelane-drivers``."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Protocol

from surelane import calls
from surelane.errors import INSTALL, UnsupportedConnection

GROUP = "surelane.drivers"
"""Entry points of this group are named as the library. Each is a module with ``async_driver`` or ``sync_driver``."""
_EXTENSION = {"django", "psycopg", "sqlalchemy"}
"""The libraries whose drivers ``surelane-drivers`` has."""
_TAKEN = (
    "Queue takes an asyncpg connection or pool, a psycopg.AsyncConnection, or SQLAlchemy's AsyncConnection or"
    " AsyncSession; SyncQueue takes a psycopg.Connection, SQLAlchemy's Connection or Session, or Django's connection"
)


class AsyncDatabase(Protocol):
    """What :class:`surelane.Queue` takes: a connection, pool or session of a library, with awaited calls."""

    @property
    def execute(self) -> Callable[..., Awaitable[Any]]: ...


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
    return calls.async_driver(database) or _driver(database, "Queue", "async_driver")


def sync_driver(database: object) -> Driver:
    """Return the driver for a synchronous connection. ``UnsupportedConnection``: the queue cannot use it."""
    return _driver(database, "SyncQueue", "sync_driver")


def _driver(database: object, queue: str, sort: str) -> Driver:
    """Ask the module of the connection's library. Libraries subclass each other's connections."""
    bases = database.__class__.__mro__  # of what a proxy stands for
    libraries = dict.fromkeys(base.__module__.partition(".")[0] for base in bases)
    for module in filter(None, map(_module, libraries)):
        choose: Callable[[object], Driver | None] = getattr(module, sort, _none)
        if (driver := choose(database)) is not None:
            return driver
    given = f"{queue} cannot use a {type(database).__module__}.{type(database).__qualname__}."
    for library in libraries:
        if library in _EXTENSION and _module(library) is None:
            raise UnsupportedConnection(
                f"{given} This is a {library} connection; install surelane-drivers: {INSTALL} 'surelane[{library}]'"
            )
    raise UnsupportedConnection(f"{given} {_TAKEN}")


@cache
def _module(library: str) -> Any | None:  # noqa: ANN401 - a module
    """Import the module for a library's connections. It is imported for them alone: the library may be missing."""
    found = entry_points(group=GROUP, name=library)
    return next(iter(found)).load() if found else None


def _none(_: object) -> None:
    """Return no driver: the module has none of this sort."""
