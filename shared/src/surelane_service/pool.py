"""Connections to PostgreSQL: pools with bounds on everything that can hang."""

import asyncio
from datetime import timedelta

import asyncpg

from surelane.calls import Pool

LOCK_TIMEOUT = 5.0
"""Seconds that a statement for many events waits for another transaction's lock."""
GRACE = 0.5
"""Seconds by which the server gives up on a statement before the client does."""


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
) -> Pool:
    """Make a pool. It connects on first use, so the database need not be there yet.

    Args:
        dsn: any libpq URI.
        service: the ``application_name`` that an administrator sees.
        max_size: the most connections.
        statement_timeout: the server, and then the client, give up on a statement after it; never where ``None``.
        connect_timeout: the longest time that one attempt to connect may take.
        lock_timeout: seconds that a statement waits for a lock; as long as the statement may take where ``None``.
        prepared: false behind a transaction pooler, where the next connection lacks a prepared statement.
    """
    server_settings = {"application_name": service}
    if statement_timeout is not None and prepared:  # poolers refuse settings at the start of a session
        server_settings |= bounds_of(statement_timeout.total_seconds(), lock_timeout)
    return await asyncpg.create_pool(
        dsn,
        min_size=0,
        max_size=max_size,
        timeout=connect_timeout.total_seconds(),
        command_timeout=None if statement_timeout is None else statement_timeout.total_seconds() + GRACE,
        server_settings=server_settings,
        statement_cache_size=100 if prepared else 0,
        reset=_keep,
    )


async def _keep(_: object) -> None:
    """Keep the session as it is: ours hold no state, so releasing a connection needs no round trip to reset it."""


async def close_pool(pool: Pool, within: timedelta = timedelta(seconds=5)) -> None:
    """Close a pool; cut the connections that are still busy after ``within``."""
    try:
        async with asyncio.timeout(within.total_seconds()):
            await pool.close()
    except TimeoutError:
        pool.terminate()
