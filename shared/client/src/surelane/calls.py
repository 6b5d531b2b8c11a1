"""The clients' edge to the driver: each call returns an answer or raises an error of :mod:`surelane.errors`."""

from asyncio import CancelledError
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from surelane import errors

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]
    Pool = asyncpg.Pool[asyncpg.Record]
    PooledConnection = PoolConnectionProxy[asyncpg.Record]
else:  # generic in its stubs only
    Connection = asyncpg.Connection
    Pool = asyncpg.Pool
    PooledConnection = PoolConnectionProxy
Row = asyncpg.Record

DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    EOFError,
    TimeoutError,
)
"""All that asyncpg raises when a call fails."""
READABLE = r'{"escaped": "\u00e9 \ud83d\ude00", "number": 1.5}'
"""What a server reads whose encoding is UTF8."""
_READ = "select jsonb_typeof($1::text::jsonb)"


class Calls:
    """Calls on a pool or on the caller's connection.

    A call whose connection breaks may have taken effect. Two cases are certain: a call that was never sent, and a
    call inside the caller's transaction, which takes effect only at the commit.
    """

    def __init__(self, database: Pool | Connection, *, cuts: bool = False) -> None:
        """Call on ``database``. ``cuts``: keep no connection of this pool that may lead to no working server.

        A cancelled call then ends its connection. Else the pool would ask the server to stop the statement, and wait
        for an answer that a lost network never brings. If the server's state made a call fail, all are replaced: new
        ones may lead to a server that takes the call, such as the new primary after a failover.
        """
        self._database = database
        self._cuts = cuts

    async def fetch(self, query: str, *arguments: object, within: float | None = None) -> list[Row]:
        """Return all rows. ``within``: seconds for the answer; ``None``: the pool's or the connection's own bound."""
        uncertain = False
        try:
            async with self.lent() as connection:
                uncertain = not (connection.is_closed() or connection.is_in_transaction())
                return await connection.fetch(query, *arguments, timeout=within)
        except DRIVER_ERRORS as error:
            raise translated(error, uncertain=uncertain, query=query) from error

    async def fetchrow(self, query: str, *arguments: object) -> Row | None:
        rows = await self.fetch(query, *arguments)
        return rows[0] if rows else None

    async def fetchval(self, query: str, *arguments: object) -> Any:  # noqa: ANN401 - any SQL type
        """Return the first value of the first row."""
        row = await self.fetchrow(query, *arguments)
        return None if row is None else row[0]

    async def call(self, function: str, *arguments: object) -> Any:  # noqa: ANN401 - any SQL type
        """Call a function of the schema ``agent``, and return its value."""
        return await self.fetchval(_called(function, len(arguments), "select "), *arguments)

    async def row(self, function: str, *arguments: object) -> Row | None:
        """Call a function of the schema ``agent``, and return its first row."""
        return await self.fetchrow(_called(function, len(arguments)), *arguments)

    async def rows(self, function: str, *arguments: object) -> list[Row]:
        """Call a function of the schema ``agent``, and return all its rows."""
        return await self.fetch(_called(function, len(arguments)), *arguments)

    async def refuses_alone(self, text: str) -> bool:
        """Return whether the server cannot read a JSON text, and reads another one: then the text is at fault.

        No table takes part, so no constraint, trigger or index that others added decides.
        """
        try:
            await self.fetchval(_READ, READABLE)
        except errors.SurelaneError:
            return False
        try:
            await self.fetchval(_READ, text)
        except errors.SurelaneError as error:
            return isinstance(error, errors.InvalidInput)
        return False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Open a transaction, and yield its connection."""
        async with self.lent() as connection:
            if connection.is_in_transaction():
                raise errors.InvalidInput(errors.IN_TRANSACTION)
            async with connection.transaction():
                yield connection

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[Connection]:
        """Lend a connection for the length of the block. Errors of getting it are the driver's."""
        if not isinstance(self._database, asyncpg.Pool):
            yield self._database
            return
        async with self._database.acquire() as connection:
            try:
                yield connection  # type: ignore[misc]  # the pool's proxy has all of a connection's methods
            except (*DRIVER_ERRORS, errors.SurelaneError, CancelledError) as error:
                if self._cuts:
                    await self._cut(connection, error)
                raise

    async def _cut(self, connection: PooledConnection, error: BaseException) -> None:
        found = translated(error) if isinstance(error, DRIVER_ERRORS) else error
        blamed = isinstance(found, Exception) and errors.blames_server(found)
        if blamed or isinstance(found, CancelledError):
            with suppress(*DRIVER_ERRORS):  # the server has cut it: that must not hide a cancellation
                connection.terminate()
        if blamed:
            await cast("Pool", self._database).expire_connections()


@cache
def _called(function: str, arguments: int, select: str = "select * from ") -> str:
    return f"{select}agent.{function}({', '.join(f'${nth}' for nth in range(1, arguments + 1))})"


def async_driver(database: object) -> Calls | None:
    """Return the calls on a pool or a connection; ``None`` on anything else."""
    known = isinstance(database, asyncpg.Pool | asyncpg.Connection | PoolConnectionProxy)
    return Calls(database) if known else None  # type: ignore[arg-type]  # the proxy is no Connection in the stubs


@contextmanager
def translating() -> Iterator[None]:
    """Raise our errors for the driver's in a block whose failure changes nothing, such as connecting."""
    try:
        yield
    except DRIVER_ERRORS as error:
        raise translated(error) from error


def translated(error: Exception, *, uncertain: bool = False, query: str = "") -> errors.SurelaneError:
    """Return our error for one of :data:`DRIVER_ERRORS`. ``uncertain``: as for :func:`surelane.errors.of_server`."""
    # The first argument alone: the rest of a PostgresError quotes the row. That of an OSError is a number.
    told = error.args[-1 if isinstance(error, OSError) else 0] if error.args else error
    message = f"{type(error).__name__}: {told}"
    if isinstance(error, asyncpg.PostgresError):
        severity = error.severity_en or error.severity  # the latter: in the language of its messages
        sqlstate = str(error.sqlstate or "")
        objects = error.schema_name, error.table_name, error.column_name, error.constraint_name
        report = errors.report_of(sqlstate, error.context, objects, query)
        return errors.of_server(message, sqlstate, severity, uncertain=uncertain, report=report)
    call = errors.report_of("", None, (), query).call
    return errors.of_connection(message, uncertain=uncertain, call=call)
