"""Connections that cannot hang: one that is still busy when its user gives up is cut, not waited for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

from surelane.calls import DRIVER_ERRORS, Connection, Pool, translated
from surelane_service.pool import UNAVAILABLE


class Connections:
    """Lends the connections of a pool."""

    def __init__(self, pool: Pool, budget: timedelta) -> None:
        """``budget``: how long getting a connection may take."""
        self._pool = pool
        self._budget = budget.total_seconds()

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Connection]:
        """A connection for the length of the block.

        After any failure in the block it is cut: the pool would first ask the server to cancel what runs, and
        wait for the answer, and a server that hangs never gives one.

        Raises:
            DatabaseUnavailable, DatabaseRefused: no connection could be had.
        """
        try:
            connection = await self._pool.acquire(timeout=self._budget)
        except DRIVER_ERRORS as error:
            raise translated(error) from error
        try:
            yield connection  # type: ignore[misc]  # the pool's proxy has all of a connection's methods
        except BaseException:
            with suppress(*UNAVAILABLE):  # cut by the server already: that must not hide a cancellation
                connection.terminate()
            raise
        finally:
            await self._pool.release(connection)
