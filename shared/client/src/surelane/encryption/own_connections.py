"""Calls on connections of their own, beside the caller's transaction, over each driver of the queue."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from surelane.calls import Calls, Row
from surelane.drivers import Driver, async_driver, sync_driver
from surelane.errors import DatabaseUnavailable, SurelaneError, UnsupportedConnection

_LIBRARIES = frozenset(("asyncpg", "psycopg", "sqlalchemy", "django"))
_LENT_WITHIN = 30
"""Seconds. The caller may hold the pool's last connection, and would wait for itself."""


class OwnConnections(Calls):
    """Calls, each on a connection that is made or lent for it, and committed at once.

    Attributes:
        asynchronous: whether calls suspend their caller for sure.
    """

    def __init__(self, source: Any) -> None:  # noqa: ANN401 - see below
        """Take an asyncpg pool, or a function that returns a new connection, or an awaitable of one.

        Raises:
            UnsupportedConnection: it is something else.
        """
        self._pool: Any = source if hasattr(source, "acquire") else None
        if self._pool is None and not callable(source):
            raise UnsupportedConnection(
                f"data keys need an asyncpg pool, or a function that returns a new connection, not a"
                f" {type(source).__module__}.{type(source).__qualname__}"
            )
        self._connect: Callable[[], Any] = source
        self.asynchronous = self._pool is not None or iscoroutinefunction(source)

    async def fetch(self, query: str, *arguments: object) -> list[Row]:
        """Return all rows."""
        async with self._driver() as driver:
            return list(await driver.fetch(query, *arguments))  # type: ignore[arg-type]  # rows of any driver

    async def fetchrow(self, query: str, *arguments: object) -> Row | None:
        """Return the first row."""
        rows = await self.fetch(query, *arguments)
        return rows[0] if rows else None

    @asynccontextmanager
    async def _driver(self) -> AsyncIterator[Driver]:
        with _translating():
            if self._pool is not None:
                async with self._pool.acquire(timeout=_LENT_WITHIN) as connection:
                    yield async_driver(connection)
                return
            made = self._connect()
            connection = await made if isawaitable(made) else made
            driver = async_driver(connection) if isawaitable(made) else sync_driver(connection)
            if _in_transaction(connection):
                raise UnsupportedConnection(
                    "data keys need a new connection: this one is in a transaction, whose rollback would"
                    " take a key away that other events already have"
                )
            try:
                yield driver
                await _done(getattr(connection, "commit", None))
            finally:
                await _done(connection.close)


async def _done(method: Callable[[], Any] | None) -> None:
    """Call a method that may be a coroutine function."""
    answer = None if method is None else method()
    if isawaitable(answer):
        await answer


def _in_transaction(connection: Any) -> bool:  # noqa: ANN401 - any library's
    """Return whether a connection is in a transaction, as its library says."""
    for name in ("in_transaction", "is_in_transaction"):  # SQLAlchemy, asyncpg
        if hasattr(connection, name):
            return bool(getattr(connection, name)())
    if hasattr(connection, "in_atomic_block"):  # Django
        return bool(connection.in_atomic_block)
    return bool(connection.info.transaction_status)  # psycopg: 0 is idle


@contextmanager
def _translating() -> Iterator[None]:
    """Raise our error where a connection cannot be made, committed or closed."""
    try:
        yield
    except SurelaneError:
        raise
    except Exception as error:
        libraries = {base.__module__.partition(".")[0] for base in type(error).__mro__}
        if libraries & _LIBRARIES or isinstance(error, OSError | EOFError):
            raise DatabaseUnavailable(f"{type(error).__name__}: {error}") from error
        raise
