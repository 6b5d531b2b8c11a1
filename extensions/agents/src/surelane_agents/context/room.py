"""The memory for the files of all turns of a process. A turn that needs some waits until others have returned it."""

import asyncio
from collections.abc import Callable

Drop = Callable[[], None]
"""Forgets a turn's bytes. It can read them again."""


class FileRoom:
    """Room for a number of bytes, given in the order in which it is asked for.

    Bytes that a turn does not use at the moment rest: they stay until others need their room. So a turn waits only for
    bytes that are being read or sent, never for a turn that waits for something else.
    """

    def __init__(self, most: int) -> None:
        self.most = self._free = most
        self._line, self._given = asyncio.Lock(), asyncio.Event()
        self._resting: dict[Drop, int] = {}

    async def take(self, size: int) -> None:
        """Wait until there is room for ``size`` bytes. More than ``most`` would never fit."""
        async with self._line:
            while self._free < size:
                if self._resting:
                    self.leave(next(iter(self._resting)))
                else:
                    self._given.clear()
                    await self._given.wait()
            self._free -= size

    def give(self, size: int) -> None:
        self._free += size
        self._given.set()

    def rest(self, drop: Drop, size: int) -> None:
        self._resting[drop] = size
        self._given.set()

    def resume(self, drop: Drop) -> int | None:
        """Use resting bytes again, and return how many there are; ``None``: they were dropped."""
        return self._resting.pop(drop, None)

    def leave(self, drop: Drop) -> None:
        """Drop bytes if they rest, and return their room."""
        if (size := self._resting.pop(drop, None)) is not None:
            drop()
            self.give(size)
