"""Lend database connections that cannot hang: a connection still busy when its user gives up is cut."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

from surelane.calls import DRIVER_ERRORS, Calls, Connection, Pool, translating
from surelane_service.compatibility import schema_unfit, schema_version
from surelane_service.logs import get_logger

STEADY = 2.0
"""Seconds without a refusal after which the database counts as working: a full disk takes some events, not all."""
UNREADY_FOR = 10.0
"""Seconds after the last refusal for which ingest is not ready. Only a further event shows whether it is again."""

_logger = get_logger(__name__)


class Connections:
    """Lend the connections of a pool, and know whether events are stored over them.

    ``budget``: seconds that getting a connection, or one statement, may take.
    """

    def __init__(self, pool: Pool, budget: timedelta) -> None:
        self._pool = pool
        self.budget = budget.total_seconds()
        self._refuses = False
        self._refused_at = 0.0

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Connection]:
        """Lend a connection for the length of the block.

        A failure in the block cuts the connection. The pool would first ask the server to cancel the statement and
        wait for the answer, which a server that hangs never sends.

        Raises:
            DatabaseUnavailable, DatabaseRefused: no connection could be had.
        """
        with translating():
            connection = await self._pool.acquire(timeout=self.budget)
        try:
            yield connection  # type: ignore[misc]  # the pool's proxy has all of a connection's methods
        except BaseException:
            # The server may have cut the connection already. That error must not hide a cancellation.
            with suppress(*DRIVER_ERRORS):
                connection.terminate()
            raise
        finally:
            await self._pool.release(connection)

    def refused(self, error: str) -> None:
        """Note that the database took no events, and log it once."""
        if not self._refuses:
            _logger.error("the database does not take events", error=error)
        self._refuses, self._refused_at = True, time.monotonic()

    def took(self) -> None:
        """Note that the database took events, and log once that it does so again."""
        if self._refuses and time.monotonic() - self._refused_at >= STEADY:
            _logger.info("the database takes events again")
            self._refuses = False

    async def unready(self) -> str | None:
        """Return why the database cannot serve this version; ``None``: it can."""
        reason = await schema_unfit(self._versions(), self.budget)
        if reason is None and self._refuses and time.monotonic() - self._refused_at < UNREADY_FOR:
            return "the database does not take events"
        return reason

    async def _versions(self) -> tuple[str, str]:
        async with self.lend() as connection:
            return await schema_version(Calls(connection))
