"""Announce that a worker is alive and which kinds it handles.

Announcements go over the listening connection. So they also show that this connection works while the worker is idle.
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
from surelane_worker.settings import WorkerSettings

EVERY = timedelta(seconds=20)
"""The pause between announcements. A worker without one for 90 seconds counts as dead (``agent.worker_alive``)."""
RETRY = timedelta(seconds=1)
FAREWELL = 5.0
"""Seconds that a stopping worker waits for the database to take it off the list."""

ClockOffset = Callable[[], Awaitable[timedelta | None]]
"""Returns how far this worker's clock is ahead of the database's; ``None`` until it is measured."""

log = get_logger("surelane_worker.duties.announcer")


class Announcer:
    """Keeps a worker on the list of live workers, and takes it off at its end."""

    def __init__(
        self,
        listener: Listener,
        engine: Engine,
        settings: WorkerSettings,
        kinds: Sequence[str],
        clock_offset: ClockOffset,
    ) -> None:
        """Announce over ``listener``, and retire through ``engine``. ``settings.max_attempts`` applies to ``kinds``."""
        self._listener = listener
        self._engine = engine
        self._name = settings.name
        self._max_attempts = settings.max_attempts
        self._kinds = kinds
        self._clock_offset = clock_offset
        self._announced = False
        self._announcement: asyncio.Task[timedelta] | None = None

    async def run(self) -> None:
        """Announce at once and then every 20 seconds, until cancelled.

        A cancellation does not stop an announcement that has begun: :meth:`retire` waits for it.
        """
        while True:
            self._announcement = asyncio.create_task(self._announce())
            await asyncio.sleep(jittered(await asyncio.shield(self._announcement)))

    async def retire(self) -> None:
        """Take the worker off the list. Wait for an announcement on its way, which would list the worker again."""
        try:
            async with asyncio.timeout(FAREWELL):
                if self._announcement is not None:
                    await asyncio.wait((self._announcement,))
                await self._engine.retire_worker(self._name)
        except (*UNAVAILABLE, DatabaseError) as error:
            log.info("could not retire; the worker counts as dead after 90 s", error=type(error).__name__)
        finally:
            if self._announcement is not None:
                self._announcement.cancel()

    async def _announce(self) -> timedelta:
        """Announce once. Return the pause before the next announcement."""
        try:
            offset = await self._clock_offset()
            async with self._listener.connection() as connection:
                await Engine(connection).announce_worker(
                    self._name, self._kinds, __version__, offset, self._max_attempts
                )
                if not self._announced:
                    await Engine(connection).free_groups()
                self._announced = True
        except (*UNAVAILABLE, *RETRYABLE):
            return RETRY  # the claimer logs the outage
        except DatabaseError as error:
            log.error("announcement failed", error=type(error).__name__)  # noqa: TRY400 - its message may quote data
        return EVERY
