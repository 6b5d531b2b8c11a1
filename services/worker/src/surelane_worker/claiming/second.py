"""A second claim in flight: while the queue is full, a claim goes out before the last one has answered.

It has a connection of its own, which joins the worker's session (:mod:`surelane_worker.sessions`).
"""

import asyncio

from surelane_service.listener import Listener
from surelane_service.logs import get_logger

MANY = 300
"""Events that a claim asks for, at least, and finds, before the next one goes out beside it."""
IDLE = 60.0
"""Seconds without need after which the connection is closed."""
PAUSE = 10.0
"""Seconds for which the worker claims over one connection after a second claim failed."""
LEAVE_WITHIN = 1.0
"""Seconds that a claim under way has to end before its connection is cut."""

log = get_logger("surelane_worker.claiming.second")


class SecondClaims:
    """Says when to claim over the second connection: while claims are large and find all that they ask for.

    Slots of slow handlers come free a few at a time, and ask for less. If the connection cannot be opened, or breaks,
    the worker goes on with the first one alone: the server may have none left.
    """

    def __init__(self, connection: Listener) -> None:
        """``connection`` is opened at the first need."""
        self.connection = connection
        self._wanted = asyncio.Event()
        self._not_before = float("-inf")
        self._stopping = False

    @property
    def is_open(self) -> bool:
        """Whether a claim may go out beside the next one."""
        return self._wanted.is_set()

    def found(self, count: int, limit: int) -> None:
        """Note that a claim of ``limit`` events found ``count``, or failed and found none."""
        if count < limit:
            self._unwanted()
        elif limit >= MANY and asyncio.get_running_loop().time() >= self._not_before:
            self._wanted.set()

    def failed(self, error: Exception) -> None:
        """Note that a second claim failed."""
        log.warning("second claim failed; the worker goes on with one", error=type(error).__name__)
        self._not_before = asyncio.get_running_loop().time() + PAUSE
        self._unwanted()

    def _unwanted(self) -> None:
        if not self._stopping:
            self._wanted.clear()

    @staticmethod
    def worth(free: list[tuple[list[str], int]]) -> list[tuple[list[str], int]]:
        """Return which of the free slots a second claim is worth its cost for."""
        return [(kinds, count) for kinds, count in free if count >= MANY]

    async def wanted(self) -> bool:
        """Wait until a second claim may go out. Return false when the worker stops."""
        try:
            async with asyncio.timeout(IDLE):
                await self._wanted.wait()
        except TimeoutError:
            await self.connection.close()
            await self._wanted.wait()
        return not self._stopping

    async def leave(self) -> None:
        """End the connection before the worker opens another session: a claim must not belong to an older one."""
        self._unwanted()
        await self.connection.retire(LEAVE_WITHIN)

    def stop(self) -> None:
        """Let no further claim go out."""
        self._stopping = True
        self._wanted.set()
