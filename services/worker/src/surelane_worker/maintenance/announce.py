"""Announcements: a worker says that it is alive and what it handles, so the queue knows what somebody will claim.

They are made over the connection that listens, which shows that it is alive, too, while there is nothing to claim.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

from surelane import __version__
from surelane.listener import Listener
from surelane.logs import get_logger
from surelane.pool import RETRYABLE, UNAVAILABLE, DatabaseError
from surelane.queue import Queue
from surelane_worker.retry import jittered

EVERY = timedelta(minutes=1)
"""Without one for three minutes a worker is taken for dead."""
RETRY = timedelta(seconds=1)
FAREWELL = 2.0
"""Seconds a worker that ends waits for the database to hear of it."""

log = get_logger("surelane_worker.maintenance.announce")


async def announce(
    listener: Listener,
    name: str,
    kinds: Sequence[str],
    clock_offset: Callable[[], Awaitable[timedelta | None]],
) -> None:
    """Announces at once and every minute, until cancelled; then retires.

    ``clock_offset`` says how far this worker's clock is ahead of the database's, once it is known.
    """
    known = False
    try:
        while True:
            pause = EVERY
            try:
                offset = await clock_offset()
                async with listener.connection() as connection:
                    await Queue(connection).announce_worker(name, kinds, __version__, offset)
                    if not known:
                        await Queue(connection).free_groups()
                    known = True
            except (*UNAVAILABLE, *RETRYABLE):
                pause = RETRY  # what claims says so
            except DatabaseError as error:
                log.error("announcement failed", error=type(error).__name__)  # noqa: TRY400 - its message may quote data
            await asyncio.sleep(jittered(pause))
    finally:
        await _retire(listener, name)


async def _retire(listener: Listener, name: str) -> None:
    try:
        async with asyncio.timeout(FAREWELL), listener.connection() as connection:
            await Queue(connection).retire_worker(name)
    except (*UNAVAILABLE, DatabaseError) as error:
        # It is taken for dead in three minutes.
        log.info("could not retire", error=type(error).__name__)
