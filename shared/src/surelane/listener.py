"""A connection of its own for claiming and for waking: it listens to notifications and is reopened when it breaks."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import asyncpg

from surelane.pool import Connection

CHANNEL = "agent_event"


class Listener:
    """One connection that listens while it claims, so that every claim also proves that notifications still arrive.

    ``on_wake`` is called for each notification and when the connection breaks: both are reasons to look at the queue.
    """

    def __init__(
        self,
        dsn: str,
        *,
        service: str,
        on_wake: Callable[[], None],
        notifications: bool = True,
        within: timedelta,
    ) -> None:
        """Nothing is opened yet.

        Args:
            dsn: any libpq URI.
            service: the ``application_name`` an administrator sees.
            on_wake: called from the event loop; must not block.
            notifications: false behind a transaction pooler, which can neither listen nor keep prepared statements.
            within: how long connecting, and each statement, may take.
        """
        self._dsn = dsn
        self._service = service
        self._on_wake = on_wake
        self._notifications = notifications
        self._within = within.total_seconds()
        self._connection: Connection | None = None

    async def connection(self) -> tuple[Connection, bool]:
        """The connection, opened if there is none; and whether it was opened just now.

        Raises:
            UNAVAILABLE: the database is not there.
        """
        if self._connection is not None and not self._connection.is_closed():
            return self._connection, False
        opened = await self._open()
        self._connection = opened
        return opened, True

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

    def drop(self) -> None:
        """Cuts the connection, whose state is unknown after an error; the next use opens another."""
        if self._connection is not None:
            self._connection.remove_termination_listener(self._wake)
            self._connection.terminate()
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
