"""The connection that claims, and listens to notifications while it should. It is opened again when it breaks."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import asyncpg

from surelane.calls import DRIVER_ERRORS, Connection, translating
from surelane.errors import SurelaneError
from surelane_service.pool import GRACE, LOCK_TIMEOUT, bounds_of

CHANNEL = "agent_event"
CANCELS = "agent_cancel"
"""Notifications of running events that are to be cancelled: their ids."""


PROOF = 1.5
"""Seconds that the server has to answer :meth:`Listener.prove`."""


class Listener:
    """Listen on the connection that claims: every claim also proves that notifications still arrive.

    The session's advisory locks show the database that the worker lives, and what its position is.
    """

    def __init__(
        self,
        dsn: str,
        *,
        service: str,
        introduce: Callable[[Connection], Awaitable[None]],
        on_notice: Callable[[str], None] = lambda _: None,
        on_lost: Callable[[], None] = lambda: None,
        on_open: Callable[[], None] = lambda: None,
        notifications: bool = True,
        within: timedelta,
    ) -> None:
        """Keep the arguments; the first use opens the connection.

        Args:
            dsn: any libpq URI.
            service: the ``application_name`` that an administrator sees.
            on_notice: called with the payload of each notification, in the event loop; it must not block.
            on_lost: called when the connection breaks, in the event loop: the worker's session is gone until it is
                opened again, and notifications are missed.
            on_open: called when the connection was opened: state learned over an earlier one may be out of date.
            introduce: called with each new connection, before it has any other use.
            notifications: false behind a transaction pooler, which can neither listen nor keep prepared statements.
            within: the longest time that connecting, and each statement, may take.
        """
        self._dsn = dsn
        self._service = service
        self._on_notice = {CHANNEL: on_notice}
        self._on_lost = on_lost
        self._on_open = on_open
        self._introduce = introduce
        self._notifications = notifications
        self._within = within.total_seconds()
        self._connection: Connection | None = None
        self._channels: set[str] = set()
        self._turn = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Lend the connection for the length of the block, opened if there is none; one block at a time.

        An error in the block cuts the connection, because its state is unknown then.

        Raises:
            DatabaseUnavailable, DatabaseRefused: it cannot be opened.
        """
        async with self._turn:
            if self._connection is None or self._connection.is_closed():
                with translating():
                    self._connection = await self._open()
                self._on_open()
            try:
                yield self._connection
            except BaseException:
                self._cut()
                raise

    @asynccontextmanager
    async def bounded(self) -> AsyncIterator[Connection]:
        """Lend the connection for one statement that the server must not carry out after the client gave it up.

        The session's own bounds see to that. A pooler refuses them at the start of a session: there a transaction
        sets them, and a statement that was given up is never committed.

        Raises:
            DatabaseUnavailable, DatabaseRefused: it cannot be opened, or the transaction cannot begin or commit.
        """
        async with self.connection() as connection:
            if self._notifications:
                yield connection
                return
            # After an error in the block the connection is cut, which rolls back.
            transaction = connection.transaction()
            bounds = bounds_of(self._within, LOCK_TIMEOUT)
            with translating():
                await transaction.start()
                await connection.execute("".join(f"set local {name} = {bounds[name]};" for name in bounds))
            yield connection
            with translating():
                await transaction.commit()

    async def prove(self) -> None:
        """Find out whether the server still answers on this connection. Cut it if not."""
        if self._connection is not None and not self._turn.locked():  # a claim under way finds out, too
            with suppress(SurelaneError):
                async with self.connection() as connection:
                    with translating():
                        await connection.execute("select", timeout=PROOF)

    def hear(self, channel: str, on_notice: Callable[[str], None]) -> None:
        """Call ``on_notice`` with the notifications of another channel, while :meth:`listen` wants them."""
        self._on_notice[channel] = on_notice

    def hears(self, channel: str) -> bool:
        """Return whether the connection listens to a channel."""
        return channel in self._channels and self._connection is not None and not self._connection.is_closed()

    async def listen(self, *, wanted: bool, channel: str = CHANNEL) -> bool:
        """Begin or stop to listen to a channel. Return whether it began: notifications before that are missed.

        Raises:
            DatabaseUnavailable, DatabaseRefused: the connection cannot be opened, or it broke.
        """
        async with self.connection() as connection:
            listens = channel in self._channels
            with translating():
                if wanted and not listens:
                    await connection.add_listener(channel, self._notice)
                    self._channels.add(channel)
                elif listens and not wanted:
                    await connection.remove_listener(channel, self._notice)
                    self._channels.discard(channel)
            return wanted and not listens

    async def _open(self) -> Connection:
        settings = {"application_name": self._service, **bounds_of(self._within, LOCK_TIMEOUT)}
        opened: Connection = await asyncpg.connect(
            self._dsn,
            timeout=self._within,
            command_timeout=self._within + GRACE,
            statement_cache_size=100 if self._notifications else 0,
            server_settings=settings if self._notifications else None,
        )
        opened.add_termination_listener(self._lost)
        self._channels = set()
        try:
            await self._introduce(opened)
        except BaseException:
            self._give_up(opened)  # without on_lost: it would wake a claimer that pauses after a failure
            raise
        return opened

    def _notice(self, *notice: Any) -> None:  # noqa: ANN401 - the connection, the sender, the channel, the payload
        self._on_notice[notice[2]](notice[3])

    def _lost(self, _: Any) -> None:  # noqa: ANN401 - the connection
        self._on_lost()

    def _cut(self) -> None:
        """Cancel the running statement and end the connection. Its user is told, and opens another one."""
        if self._connection is not None:
            self._give_up(self._connection)
            self._connection = None
            self._on_lost()

    def _give_up(self, connection: Connection) -> None:
        """Cancel the statement of a connection and end it; :meth:`close` waits until both are done."""
        # It may end after the next one was opened: then it must not be taken for that.
        connection.remove_termination_listener(self._lost)
        ending = asyncio.create_task(_end(connection))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def retire(self, within: float) -> None:
        """End the connection once it is not in use; cut it if it still is after ``within`` seconds."""
        try:
            async with asyncio.timeout(within):
                await self._turn.acquire()
        except TimeoutError:
            self._cut()
            return
        try:
            await self.close()
        finally:
            self._turn.release()

    def terminate(self) -> None:
        """Cut the connection at once, as the end of the process does."""
        if self._connection is not None:
            self._connection.remove_termination_listener(self._lost)
            self._connection.terminate()

    async def close(self) -> None:
        """End the connection in an orderly way; cut it where that fails.

        No statement of any of its connections runs afterwards, unless the server answers no cancel within 2 seconds.
        """
        if self._connection is not None:
            self._connection.remove_termination_listener(self._lost)
            await _end(self._connection)
        self._connection = None
        if self._ending:
            await asyncio.wait(self._ending)


async def _end(connection: Connection) -> None:
    try:
        await connection.close(timeout=2)  # cancels a statement that runs
    except DRIVER_ERRORS:
        connection.terminate()
