"""The clients' edge to the driver: every call ends with an answer or with an error of :mod:`surelane.errors`."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from surelane import errors
from surelane.pool import UNAVAILABLE, Connection, Pool

DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    EOFError,
    TimeoutError,
)
"""Everything asyncpg raises when a call fails."""

_BY_SQLSTATE: dict[str, type[errors.DatabaseRefused]] = {
    "40P01": errors.TransientConflict,
    "40001": errors.TransientConflict,
    "23505": errors.Conflict,
    "55P03": errors.Conflict,
    "42501": errors.Forbidden,
    "42883": errors.SchemaMissing,
    "42P01": errors.SchemaMissing,
    "3F000": errors.SchemaMissing,
}
_BY_CLASS: dict[str, type[errors.DatabaseRefused]] = {
    "22": errors.InvalidInput,
    "23": errors.InvalidInput,
    "54": errors.InvalidInput,
}
_UNKNOWN_CLASSES = ("08", "57")
_COMPLETION_UNKNOWN = "40003"


class Calls:
    """Calls on a pool or on the caller's connection.

    A call whose connection breaks may have taken effect, unless it never left, or a transaction that the
    caller has begun was around it: only a commit makes that last.
    """

    def __init__(self, database: Pool | Connection) -> None:
        self._database = database

    async def fetch(self, query: str, *arguments: object) -> list[asyncpg.Record]:
        """All rows."""
        rows: list[asyncpg.Record] = await self._call("fetch", query, arguments)
        return rows

    async def fetchrow(self, query: str, *arguments: object) -> asyncpg.Record | None:
        """The first row."""
        row: asyncpg.Record | None = await self._call("fetchrow", query, arguments)
        return row

    async def fetchval(self, query: str, *arguments: object) -> Any:  # noqa: ANN401 - what SQL returns
        """The first row's first value."""
        return await self._call("fetchval", query, arguments)

    async def execute(self, query: str, *arguments: object) -> None:
        """No rows."""
        await self._call("execute", query, arguments)

    async def _call(self, method: str, query: str, arguments: Sequence[object]) -> Any:  # noqa: ANN401
        uncertain = False
        try:
            async with self._lent() as connection:
                uncertain = not (connection.is_closed() or connection.is_in_transaction())
                return await getattr(connection, method)(query, *arguments)
        except DRIVER_ERRORS as error:
            raise translated(error, uncertain=uncertain) from error

    @asynccontextmanager
    async def _lent(self) -> AsyncIterator[Connection]:
        if isinstance(self._database, asyncpg.Pool):
            async with self._database.acquire() as connection:
                yield connection  # type: ignore[misc]  # the pool's proxy has all of a connection's methods
        else:
            yield self._database


def translated(error: Exception, *, uncertain: bool = False) -> errors.SurelaneError:
    """Our error for one of the driver's.

    Args:
        error: one of :data:`DRIVER_ERRORS`.
        uncertain: the call was sent outside of a transaction, so a break leaves its outcome unknown.
    """
    # The first argument alone: the rest of a PostgresError quotes the row.
    message = f"{type(error).__name__}: {error.args[0] if error.args else error}"
    if isinstance(error, asyncpg.PostgresError):
        if uncertain and _broke(error):
            return errors.OutcomeUnknown(message)
        if not isinstance(error, UNAVAILABLE):
            sqlstate = str(error.sqlstate or "")
            by_class = _BY_CLASS.get(sqlstate[:2], errors.DatabaseRefused)
            return _BY_SQLSTATE.get(sqlstate, by_class)(message, sqlstate)
        return errors.DatabaseUnavailable(message)
    return (errors.OutcomeUnknown if uncertain else errors.DatabaseUnavailable)(message)


def _broke(error: asyncpg.PostgresError) -> bool:
    """Whether an error may come after the commit: an ``ERROR`` rolls back, but the end of a session may follow
    a commit, and so may a cancel request that arrives late."""
    sqlstate = str(error.sqlstate or "")
    return (
        {error.severity, error.severity_en} & {"FATAL", "PANIC"} != set()
        or sqlstate[:2] in _UNKNOWN_CLASSES
        or sqlstate == _COMPLETION_UNKNOWN
    )
