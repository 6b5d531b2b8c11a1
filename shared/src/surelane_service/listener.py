"""A connection of its own for claiming and for waking: it listens to notifications and is reopened when it breaks."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg

from surelane.calls import Connection
from surelane_service.pool import GRACE, LOCK_TIMEOUT, bounds_of

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
        self._ending: set[asyncio.Task[None]] = set()

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

    @asynccontextmanager
    async def bounded(self) -> AsyncIterator[Connection]:
        """As :meth:`connection`, for one statement that must not be carried out after we gave it up.

        The server's own bounds see to that. A pooler refuses them at the start of a session: there a transaction
        sets them, and a statement that was given up is never committed.
        """
        async with self.connection() as connection:
            if self._notifications:
                yield connection
                return
            async with connection.transaction():
                bounds = bounds_of(self._within, LOCK_TIMEOUT)
                await connection.execute("".join(f"set local {name} = {bounds[name]};" for name in bounds))
                yield connection

    async def _open(self) -> Connection:
        settings = {"application_name": self._service, **bounds_of(self._within, LOCK_TIMEOUT)}
        opened: Connection = await asyncpg.connect(
            self._dsn,
            timeout=self._within,
            command_timeout=self._within + GRACE,
            statement_cache_size=100 if self._notifications else 0,
            server_settings=settings if self._notifications else None,
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
        """Has the server cancel what runs, then ends the connection, which wakes: another must be opened."""
        if self._connection is not None:
            ending = asyncio.create_task(_end(self._connection))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
            self._connection = None

    async def close(self) -> None:
        """Ends the connection in an orderly way, or cuts it where that fails."""
        if self._connection is not None:
            self._connection.remove_termination_listener(self._wake)
            await _end(self._connection)
        self._connection = None
        if self._ending:
            await asyncio.wait(self._ending)


async def _end(connection: Connection) -> None:
    try:
        await connection.close(timeout=2)  # cancels a statement that runs
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()
