"""Capacity: says when more may be claimed, because a slot became free or a claim was settled."""

import asyncio
from collections.abc import Callable


class Capacity:
    """Wakes the claimer when there may be capacity for more events."""

    def __init__(self, wake: Callable[[], None] | None = None) -> None:
        """``wake`` ends the claimer's sleep between claims."""
        self._wake = wake
        self._freed = asyncio.Event()
        self.left_out = False
        """Whether the last claim left out kinds without a free slot. Then a sleeping claimer wakes once one is free."""

    def free(self) -> None:
        """Say that there may be capacity. Call it from the event loop."""
        self._freed.set()
        if self.left_out and self._wake is not None:
            self._wake()

    async def freed(self, within: float) -> bool:
        """Wait until there may be capacity, at most ``within`` seconds. Return whether there may be."""
        self._freed.clear()
        try:
            async with asyncio.timeout(within):
                await self._freed.wait()
        except TimeoutError:
            return False
        return True
