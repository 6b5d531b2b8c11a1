"""Announcements: a worker says that it is alive and what it handles, so the queue knows what somebody will claim.

They are made over the connection that listens, which shows that it is alive, too, while there is nothing to claim.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

from surelane import __version__
from surelane_service.engine import Engine
from surelane_service.listener import Listener
from surelane_service.logs import get_logger
from surelane_service.pool import RETRYABLE, UNAVAILABLE, DatabaseError
from surelane_worker.handling.retry import jittered

EVERY = timedelta(seconds=20)
"""Without one for 90 seconds a worker counts as dead (``agent.worker_alive``)."""
RETRY = timedelta(seconds=1)
FAREWELL = 5.0
"""Seconds a worker that ends waits for the database to hear of it."""

log = get_logger("surelane_worker.duties.announce")


class Announcer:
    """Says that a worker is alive, and at its end that it is not."""

    def __init__(
        self,
        listener: Listener,
        engine: Engine,
        name: str,
        kinds: Sequence[str],
        clock_offset: Callable[[], Awaitable[timedelta | None]],
        max_attempts: int,
    ) -> None:
        """``clock_offset`` says how far this worker's clock is ahead of the database's, once it is known.

        ``max_attempts`` becomes the maximum of ``kinds``.
        """
        self._listener = listener
        self._engine = engine
        self._name = name
        self._kinds = kinds
        self._clock_offset = clock_offset
        self._max_attempts = max_attempts
        self._known = False
        self._saying: asyncio.Task[timedelta] | None = None

    async def run(self) -> None:
        """Announces at once and every 20 seconds, until cancelled. An announcement that is on its way goes on then."""
        while True:
            self._saying = asyncio.create_task(self._say())
            await asyncio.sleep(jittered(await asyncio.shield(self._saying)))

    async def retire(self) -> None:
        """Takes the worker off the list, after an announcement that is on its way: a later one would list it again."""
        try:
            async with asyncio.timeout(FAREWELL):
                if self._saying is not None:
                    await asyncio.wait((self._saying,))
                await self._engine.retire_worker(self._name)
        except (*UNAVAILABLE, DatabaseError) as error:
            # Without announcements it counts as dead after 90 seconds.
            log.info("could not retire", error=type(error).__name__)
        finally:
            if self._saying is not None:
                self._saying.cancel()

    async def _say(self) -> timedelta:
        """Announces once; returns how long to wait before the next time."""
        try:
            offset = await self._clock_offset()
            async with self._listener.connection() as connection:
                await Engine(connection).announce_worker(
                    self._name, self._kinds, __version__, offset, self._max_attempts
                )
                if not self._known:
                    await Engine(connection).free_groups()
                self._known = True
        except (*UNAVAILABLE, *RETRYABLE):
            return RETRY  # what claims says so
        except DatabaseError as error:
            log.error("announcement failed", error=type(error).__name__)  # noqa: TRY400 - its message may quote data
        return EVERY
