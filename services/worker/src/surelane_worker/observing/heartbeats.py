"""Heartbeats: when this worker last told the database that it is alive, and whether it is still announced."""

import asyncio
from datetime import timedelta

PAUSE = 15.0
"""Seconds between two heartbeats, at least, however often the worker polls."""
LATE = timedelta(seconds=65)
"""The longest pause between them: then the worker announces itself. Dead is who sent none for 90 s."""


class Heartbeats:
    """Polls bring heartbeats to the database; the announcer announces the worker where they did not."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self._last = float("-inf")
        self._missing = asyncio.Event()
        self.clock_offset: timedelta | None = None
        """This process's clock less the database's, as last compared."""

    def due(self) -> str | None:
        """Return the worker's name if it is time for a heartbeat."""
        return self.worker if asyncio.get_running_loop().time() - self._last >= PAUSE else None

    def sent(self, *, announced: bool) -> None:
        """Note that the database took a heartbeat, and whether the worker was announced."""
        if announced:
            self._last = asyncio.get_running_loop().time()
        else:
            self._missing.set()

    async def missing(self, within: float) -> None:
        """Wait ``within`` seconds, or until the worker is not announced, or its last heartbeat is too old."""
        self._missing.clear()
        clock = asyncio.get_running_loop().time
        end = clock() + within
        while (left := min(self._last + LATE.total_seconds(), end) - clock()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._missing.wait()
            except TimeoutError:
                continue
            return
