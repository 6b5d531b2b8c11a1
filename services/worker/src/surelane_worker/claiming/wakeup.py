"""What wakes a claimer that has nothing to claim, and asks the poller to look ahead."""

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime


class Wakeup:
    """Coalesce reasons to claim: one claim answers all notifications that came before it.

    An idle worker claims again when it is notified, when the next event is due, or when a poll found one.
    """

    def __init__(self, curious: asyncio.Event | None = None) -> None:
        """``curious`` asks for a peek. Wake-ups that share it share the peeks."""
        self._reason = asyncio.Event()
        self._curious = asyncio.Event() if curious is None else curious
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

    def peeked(
        self, now: datetime, vts: Iterable[datetime | None], on_due: Callable[[], None] | None
    ) -> None:
        """Wake at once if a peek found an event to claim. Call ``on_due`` when the next one is due.

        Args:
            now: the time of the peek.
            vts: when the events that it found are visible.
            on_due: ``None``: another worker claims the next one.
        """
        found = [vt for vt in vts if vt is not None]
        if any(vt <= now for vt in found):
            self._reason.set()
        if self._timer is not None:
            self._timer.cancel()
        due_in = min(((vt - now).total_seconds() for vt in found if vt > now), default=None)
        self._timer = None
        if on_due is not None and due_in is not None:
            self._timer = asyncio.get_running_loop().call_later(due_in, on_due)
