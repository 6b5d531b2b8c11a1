"""Connections to PostgreSQL: bounds on everything that can hang, and none to a primary that a failover replaced."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import asyncpg
from opentelemetry import trace
from pydantic import SecretStr

from surelane.calls import DRIVER_ERRORS, Connection, Pool, translating
from surelane.errors import DatabaseUnavailable, SurelaneError
from surelane_service.common import connecting

LOCK_TIMEOUT = 5.0
"""Seconds that a statement for many events waits for another transaction's lock."""
GRACE = 0.5
"""Seconds by which the server gives up on a statement before the client does."""
CHANNEL = "agent_event"
CANCELS = "agent_cancel"
"""Notifications of running events that are to be cancelled: their ids."""
PROOF = 1.5
"""Seconds that the server has to answer :meth:`Listener.prove`."""
_OLDER_SCHEMA = (
    asyncpg.UndefinedFunctionError,
    asyncpg.InvalidSchemaNameError,
    asyncpg.InsufficientPrivilegeError,
)
_NONE = (0, 0)
_seen = _NONE
"""The system identifier and the timeline of the server that this process saw last."""
_pools: set[Pool] = set()
"""The open pools of this process."""


class FormerPrimary(DatabaseUnavailable):
    """The server was the primary before a failover, and another one is now: connect to that one."""


async def refuse_former_primary(connection: Connection) -> None:
    """Check a new connection. When it leads to another server than the last one, replace all older connections.

    :class:`FormerPrimary`: this process, or a worker that told the server, saw a newer timeline of it.
    """
    global _seen
    row = None
    with suppress(*_OLDER_SCHEMA):
        row = await connection.fetchrow("select * from agent.own_timeline()")
    if row is None or row["timeline"] is None:
        return
    system, timeline, newest = row
    if _seen[0] == system and _seen[1] > newest:
        newest = _seen[1]
        with suppress(asyncpg.InsufficientPrivilegeError):  # only workers may tell the server
            await connection.execute("select agent.note_timeline($1, $2)", *_seen)
    if newest > timeline:
        raise FormerPrimary(
            f"this server is on timeline {timeline}, but timeline {newest} was seen:"
            " it was the primary before a failover"
        )
    before, _seen = _seen, (system, timeline)
    if before not in (_seen, _NONE):
        for pool in tuple(_pools):
            with suppress(asyncpg.InterfaceError):  # closed meanwhile
                await pool.expire_connections()


async def connect(dsn: str, *, timeout: float, **options: Any) -> Connection:  # noqa: ANN401 - of asyncpg.connect
    """Connect to the primary among a URI's hosts, with the settings that our SQL relies on.

    It happens outside the trace of the statement that needed the connection.
    """
    given = options.pop("server_settings")
    with trace.use_span(trace.INVALID_SPAN):
        return await connecting.connect(dsn, timeout=timeout, settings=given, primary=True, **options)


def bounds_of(statement_timeout: float, lock_timeout: float | None = None) -> dict[str, str]:
    """Return the settings of a session that bound its statements, in seconds.

    With ``client_connection_check_interval`` a server stops a statement within 2 seconds of its client's end.
    """
    bounds = {
        "statement_timeout": str(int(statement_timeout * 1000)),
        "client_connection_check_interval": "2000",
    }
    if lock_timeout is not None:
        bounds["lock_timeout"] = str(int(lock_timeout * 1000))
    return bounds


async def create_pool(
    dsn: str,
    *,
    service: str,
    max_size: int,
    statement_timeout: timedelta | None = None,
    connect_timeout: timedelta = timedelta(seconds=5),
    prepared: bool = True,
    lock_timeout: float | None = None,
    within: timedelta | None = None,
    worker: str = "",
    introduce: Callable[[Connection], Awaitable[None]] | None = None,
) -> Pool:
    """Make a pool. It connects on first use, so the database need not be there yet.

    Args:
        dsn: any libpq URI.
        service: the ``application_name`` that an administrator sees.
        statement_timeout: the server, and then the client, give up on a statement after it; never where ``None``.
        connect_timeout: the longest time that one attempt to connect may take.
        within: the client gives up on a statement after it, sooner than the server: the connection may be half-open.
        lock_timeout: seconds that a statement waits for a lock; as long as the statement may take where ``None``.
        prepared: false behind a transaction pooler, where the next connection lacks a prepared statement.
        worker: whose claims its statements may change; not checked where empty, or behind a transaction pooler.
        introduce: called with each new connection, before it has any other use.
    """
    if within is None and statement_timeout is not None:
        within = statement_timeout + timedelta(seconds=GRACE)
    server_settings = {"application_name": service}
    if statement_timeout is not None and prepared:  # poolers refuse settings at the start of a session
        server_settings |= bounds_of(statement_timeout.total_seconds(), lock_timeout)
        if worker:
            server_settings["surelane.worker"] = worker
    pool: Pool = await asyncpg.create_pool(
        dsn,
        connect=partial(connect, pooled=not prepared),
        min_size=0,
        max_size=max_size,
        timeout=connect_timeout.total_seconds(),
        command_timeout=None if within is None else within.total_seconds(),
        server_settings=server_settings,
        statement_cache_size=100 if prepared else 0,
        init=partial(_check, introduce),
        reset=_keep,
    )
    _pools.add(pool)
    return pool


@asynccontextmanager
async def opened_pool(dsn: SecretStr, **options: Any) -> AsyncIterator[Pool]:  # noqa: ANN401 - of :func:`create_pool`
    """Make a pool as :func:`create_pool` does, and close it at the end of the block."""
    pool = await create_pool(dsn.get_secret_value(), **options)
    try:
        yield pool
    finally:
        await close_pool(pool)


async def _check(introduce: Callable[[Connection], Awaitable[None]] | None, connection: Connection) -> None:
    """Check a new connection outside the trace of the statement that needed it."""
    with trace.use_span(trace.INVALID_SPAN):
        await refuse_former_primary(connection)
        if introduce is not None:
            await introduce(connection)


async def _keep(_: object) -> None:
    """Keep the session as it is: ours hold no state, so releasing a connection needs no round trip to reset it."""


async def close_pool(pool: Pool, within: timedelta = timedelta(seconds=5)) -> None:
    """Close a pool; cut the connections that are still busy after ``within``."""
    _pools.discard(pool)
    try:
        async with asyncio.timeout(within.total_seconds()):
            await pool.close()
    except TimeoutError:
        pool.terminate()


@dataclass(eq=False, repr=False)
class Listener:
    """A connection that listens, and is used besides: each use also proves that notifications still arrive.

    The first use opens it. A worker's claims; its advisory locks show that the worker lives, and its position.

    Attributes:
        dsn, service: as for :func:`create_pool`.
        introduce: called with each new connection, before it has any other use.
        within: the longest time that connecting, and each statement, may take.
        on_lost: called when the connection breaks, in the event loop: its locks are gone, and notifications missed.
        on_open: called when the connection was opened: state learned over an earlier one may be out of date.
        notifications: false behind a transaction pooler, which can neither listen nor keep prepared statements.
    """

    dsn: str
    _: KW_ONLY
    service: str
    introduce: Callable[[Connection], Awaitable[None]] | None = None
    within: timedelta
    on_lost: Callable[[], None] = lambda: None
    on_open: Callable[[], None] = lambda: None
    notifications: bool = True

    def __post_init__(self) -> None:
        self._on_notice: dict[str, Callable[[str], None]] = {}
        self._within = self.within.total_seconds()
        self._connection: Connection | None = None
        self._channels: set[str] = set()
        self._turn = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Lend the connection for the length of the block, opened if there is none; one block at a time.

        An error in the block cuts it, because its state is unknown then. ``DatabaseUnavailable``, ``DatabaseRefused``:
        it cannot be opened.
        """
        async with self._turn:
            if self._connection is None or self._connection.is_closed():
                with translating():
                    self._connection = await self._open()
                self.on_open()
            try:
                yield self._connection
            except BaseException:
                self._cut()
                raise

    @asynccontextmanager
    async def bounded(self) -> AsyncIterator[Connection]:
        """Lend it, as :meth:`connection`, for a statement that the server must not carry out once the client gave up.

        The session's own bounds see to that. A pooler refuses them at the start of a session: there a transaction
        sets them, and a statement that was given up is never committed.
        """
        async with self.connection() as connection:
            if self.notifications:
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
        """Call ``on_notice``, in the event loop, with each notification of a channel that :meth:`listen` wants."""
        self._on_notice[channel] = on_notice

    def hears(self, channel: str) -> bool:
        """Return whether the connection listens to a channel."""
        return channel in self._channels and self._connection is not None and not self._connection.is_closed()

    async def listen(self, *, wanted: bool, channel: str = CHANNEL) -> bool:
        """Begin or stop listening to a channel. Return whether it began: notifications before that are missed."""
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
        settings = {"application_name": self.service, **bounds_of(self._within, LOCK_TIMEOUT)}
        opened = await connect(
            self.dsn,
            timeout=self._within,
            command_timeout=self._within + GRACE,
            statement_cache_size=100 if self.notifications else 0,
            server_settings=settings if self.notifications else {"application_name": self.service},
            pooled=not self.notifications,
        )
        opened.add_termination_listener(self._lost)
        self._channels = set()
        try:
            await refuse_former_primary(opened)
            if self.introduce is not None:
                await self.introduce(opened)
        except BaseException:
            self._give_up(opened)  # without on_lost: it would wake a claimer that pauses after a failure
            raise
        return opened

    def _notice(self, *notice: Any) -> None:  # noqa: ANN401 - the connection, the sender, the channel, the payload
        self._on_notice[notice[2]](notice[3])

    def _lost(self, _: Any) -> None:  # noqa: ANN401 - the connection
        self.on_lost()

    def _cut(self) -> None:
        """Cancel the running statement and end the connection. Its user is told, and opens another one."""
        if self._connection is not None:
            self._give_up(self._connection)
            self._connection = None
            self.on_lost()

    def _give_up(self, connection: Connection) -> None:
        """Cancel the statement of a connection and end it; :meth:`close` waits until both are done."""
        # It may end after the next one was opened: then it must not be taken for that.
        connection.remove_termination_listener(self._lost)
        ending = asyncio.create_task(_end(connection))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    def terminate(self) -> None:
        """Cut the connection at once, as the end of the process does."""
        if self._connection is not None:
            self._connection.remove_termination_listener(self._lost)
            self._connection.terminate()

    async def close(self) -> None:
        """End the connection in an orderly way; cut it where that fails. No statement of it runs afterwards.

        A server that answers no cancel within 2 seconds may still run one.
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
