"""Connections to PostgreSQL: one pool a service, with budgets on everything that can hang."""

import asyncio
from datetime import timedelta

import asyncpg

from surelane.calls import Pool
from surelane.errors import DatabaseRefused, DatabaseUnavailable, Forbidden, TransientConflict

DatabaseError = DatabaseRefused
"""What the server refuses through a client; :data:`UNAVAILABLE` and :data:`RETRYABLE` are worth sending again."""

UNAVAILABLE = (
    DatabaseUnavailable,
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.InternalClientError,
)
"""What the clients and asyncpg raise when the database is away, going away, coming back, or out of connections."""

FORBIDDEN = (
    Forbidden,
    asyncpg.InsufficientPrivilegeError,
)
"""The role that is connected may not call the function."""

RETRYABLE = (TransientConflict, asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
"""40P01 and 40001: the statement did nothing and may be sent again."""


LOCK_TIMEOUT = 5.0
"""Seconds that a statement for many events waits for another transaction's lock."""
GRACE = 0.5
"""Seconds by which the server gives up on a statement before the client does."""


def bounds_of(statement_timeout: float, lock_timeout: float | None = None) -> dict[str, str]:
    """Settings of a session that bound its statements, in seconds. A server whose client is gone notices soon."""
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
    min_size: int = 0,
    statement_timeout: timedelta | None = None,
    connect_timeout: timedelta = timedelta(seconds=5),
    prepared: bool = True,
    lock_timeout: float | None = None,
) -> Pool:
    """Opens a pool without needing the database to be there yet (``min_size`` 0 connects on first use).

    Args:
        dsn: any libpq URI.
        service: the ``application_name`` an administrator sees.
        max_size: connections at most.
        min_size: connections opened at once.
        statement_timeout: given up by the server and by the client after this long; none where ``None``.
        connect_timeout: how long one attempt to connect may take.
        lock_timeout: seconds that a statement waits for a lock; no less than for the statement where ``None``.
        prepared: false behind a transaction pooler, where a statement is not found again on another connection.

    Raises:
        DatabaseUnavailable: ``min_size`` connections could not be had.
        ValueError: ``dsn`` is not a PostgreSQL URI.
    """
    server_settings = {"application_name": service}
    if statement_timeout is not None and prepared:  # poolers refuse settings at the start of a session
        server_settings |= bounds_of(statement_timeout.total_seconds(), lock_timeout)
    try:
        return await asyncpg.create_pool(
            dsn,
            min_size=min_size,
            max_size=max_size,
            timeout=connect_timeout.total_seconds(),
            command_timeout=None if statement_timeout is None else statement_timeout.total_seconds() + GRACE,
            server_settings=server_settings,
            statement_cache_size=100 if prepared else 0,
            reset=_keep,
        )
    except UNAVAILABLE as error:
        raise DatabaseUnavailable(
            f"cannot connect to the database: {type(error).__name__}: {error}"
        ) from error


async def _keep(_: object) -> None:
    """Sessions keep no state of ours, so a connection goes back to the pool without a round trip that resets it."""


async def close_pool(pool: Pool, within: timedelta = timedelta(seconds=5)) -> None:
    """Closes a pool, cutting connections that are still busy when the time is up."""
    try:
        async with asyncio.timeout(within.total_seconds()):
            await pool.close()
    except TimeoutError:
        pool.terminate()
