"""When an idle worker looks at the queue again: when notified, when the next event is due, or when a poll found one."""

import asyncio

from surelane_service.engine import Peek


class Wakeup:
    """Coalesces reasons to look at the queue: any number of notifications before a claim are answered by that claim."""

    def __init__(self) -> None:
        self._reason = asyncio.Event()
        self._curious = asyncio.Event()
        self._active = True
        self._timer: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """Something happened: there may be something to claim, or scheduled. Called from the event loop."""
        self._active = True
        self._reason.set()

    def answered(self) -> None:
        """A claim begins: what was notified until now will be seen by it."""
        self._reason.clear()

    def found_some(self) -> None:
        """A claim brought events; more may be scheduled behind them."""
        self._active = True

    async def sleep(self, within: float | None = None) -> None:
        """Waits until there is a reason to claim, at most ``within`` seconds."""
        if self._active:
            self.look_ahead()
        try:
            async with asyncio.timeout(within):
                await self._reason.wait()
        except TimeoutError:
            return

    def look_ahead(self) -> None:
        """Asks for a peek: what is due next may be another event now."""
        self._active = False
        self._curious.set()

    async def asked(self, within: float) -> bool:
        """Waits until somebody asks for a peek, at most ``within`` seconds; answers whether somebody did."""
        try:
            async with asyncio.timeout(within):
                await self._curious.wait()
        except TimeoutError:
            return False
        return True

    def peeks(self) -> None:
        """A peek begins: whoever asked until now will be answered by it."""
        self._curious.clear()

    def peeked(self, peek: Peek) -> None:
        """Wakes at once if there is something to claim, which is not asked about again, and when the next is due."""
        vts = [vt for vt in peek.vts if vt is not None]
        if any(vt <= peek.now for vt in vts):
            self._reason.set()
        if self._timer is not None:
            self._timer.cancel()
        due_in = min(((vt - peek.now).total_seconds() for vt in vts if vt > peek.now), default=None)
        self._timer = None if due_in is None else asyncio.get_running_loop().call_later(due_in, self.wake)


class Room:
    """Says when work ended or was settled, so that more may be claimed."""

    def __init__(self, wakeup: Wakeup) -> None:
        self._wakeup = wakeup
        self._freed = asyncio.Event()
        self.left_out = False
        """Whether the last claim left out kinds that had no room: a worker that sleeps wakes when they have."""

    def free(self) -> None:
        """There may be room for more. Called from the event loop."""
        self._freed.set()
        if self.left_out:
            self._wakeup.wake()

    async def freed(self, within: float) -> bool:
        """Waits until there may be room, at most ``within`` seconds; answers whether there may be."""
        self._freed.clear()
        try:
            async with asyncio.timeout(within):
                await self._freed.wait()
        except TimeoutError:
            return False
        return True
