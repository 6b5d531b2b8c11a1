"""A connection of its own for claiming and for waking: it listens to notifications and is reopened when it breaks."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg

from surelane.pool import Connection

CHANNEL = "agent_event"


class Listener:
    """One connection that listens while it claims, so that every claim also proves that notifications still arrive.

    ``on_wake`` is called for each notification and when the connection breaks: both are reasons to look at the queue.
    ``on_open`` is called when it was opened: what was learned before may not hold any more.
    """

    def __init__(
        self,
        dsn: str,
        *,
        service: str,
        on_wake: Callable[[], None],
        on_open: Callable[[], None],
        notifications: bool = True,
        within: timedelta,
    ) -> None:
        """Nothing is opened yet.

        Args:
            dsn: any libpq URI.
            service: the ``application_name`` an administrator sees.
            on_wake: called from the event loop; must not block.
            on_open: likewise.
            notifications: false behind a transaction pooler, which can neither listen nor keep prepared statements.
            within: how long connecting, and each statement, may take.
        """
        self._dsn = dsn
        self._service = service
        self._on_wake = on_wake
        self._on_open = on_open
        self._notifications = notifications
        self._within = within.total_seconds()
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """The connection for the length of the block, opened if there is none; one block at a time.

        An error in the block cuts it, because its state is unknown then.

        Raises:
            UNAVAILABLE: the database is not there.
        """
        async with self._turn:
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._open()
                self._on_open()
            try:
                yield self._connection
            except BaseException:
                self._cut()
                raise

    async def _open(self) -> Connection:
        opened: Connection = await asyncpg.connect(
            self._dsn,
            timeout=self._within,
            command_timeout=self._within,
            statement_cache_size=100 if self._notifications else 0,
            server_settings={"application_name": self._service} if self._notifications else None,
        )
        opened.add_termination_listener(self._wake)
        if self._notifications:
            try:
                await opened.add_listener(CHANNEL, self._wake)
            except BaseException:
                opened.terminate()
                raise
        return opened

    def _wake(self, *_: Any) -> None:  # noqa: ANN401 - asyncpg passes the connection, or the notification's parts
        self._on_wake()

    def _cut(self) -> None:
        if self._connection is not None:
            self._connection.terminate()  # which wakes: whoever listens must open another
            self._connection = None

    async def close(self) -> None:
        """Ends the connection in an orderly way, or cuts it where that fails."""
        if self._connection is not None and not self._connection.is_closed():
            self._connection.remove_termination_listener(self._wake)
            try:
                await self._connection.close(timeout=2)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                self._connection.terminate()
        self._connection = None
