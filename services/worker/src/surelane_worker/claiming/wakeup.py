"""Wake-ups: an idle worker claims again when it is notified, when the next event is due, or when a poll found one."""

import asyncio

from surelane_service.engine import Peek


class Wakeup:
    """Coalesce reasons to claim: one claim answers all notifications that came before it."""

    def __init__(self) -> None:
        self._reason = asyncio.Event()
        self._curious = asyncio.Event()
        self._active = True
        self._timer: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """Say that there may be something to claim, now or later. Call it from the event loop."""
        self._active = True
        self._reason.set()

    def answered(self) -> None:
        """Say that a claim begins: it answers all notifications until now."""
        self._reason.clear()

    def found_some(self) -> None:
        """Say that a claim found events: more may be scheduled behind them."""
        self._active = True

    async def sleep(self, within: float | None = None) -> None:
        """Wait until there is a reason to claim, at most ``within`` seconds."""
        if self._active:
            self.look_ahead()
        try:
            async with asyncio.timeout(within):
                await self._reason.wait()
        except TimeoutError:
            return

    def look_ahead(self) -> None:
        """Ask for a peek: the event that is due next may have changed."""
        self._active = False
        self._curious.set()

    async def asked(self, within: float) -> bool:
        """Wait until a peek is asked for, at most ``within`` seconds. Return whether it was."""
        try:
            async with asyncio.timeout(within):
                await self._curious.wait()
        except TimeoutError:
            return False
        return True

    def peeks(self) -> None:
        """Say that a peek begins: it answers everything asked until now."""
        self._curious.clear()

    def peeked(self, peek: Peek) -> None:
        """Wake at once if the peek found an event to claim, and again when the next one is due."""
        vts = [vt for vt in peek.vts if vt is not None]
        if any(vt <= peek.now for vt in vts):
            self._reason.set()
        if self._timer is not None:
            self._timer.cancel()
        due_in = min(((vt - peek.now).total_seconds() for vt in vts if vt > peek.now), default=None)
        self._timer = None if due_in is None else asyncio.get_running_loop().call_later(due_in, self.wake)
