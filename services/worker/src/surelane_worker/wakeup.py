"""When an idle worker looks at the queue again: when notified, when the next event is due, or after a poll interval."""

import asyncio
from datetime import timedelta

from surelane_worker.retry import jittered

LOOK_AHEAD_PAUSE = 0.25
"""Looking for the next due event follows activity, but not more often than this, in seconds."""
HORIZON = 12
"""How far it looks ahead, in poll intervals. Farther away lie the index entries of leases, dead and alive."""
LOOK_AGAIN = 10
"""After so many poll intervals it looks ahead again, whatever happened: before what was seen comes to its end."""


class Wakeup:
    """Coalesces reasons to look at the queue: any number of notifications before a claim are answered by that claim."""

    def __init__(self, poll_interval: timedelta) -> None:
        self.horizon = HORIZON * poll_interval
        self._poll_interval = poll_interval
        self._reason = asyncio.Event()
        self._active = True
        self._looked_ahead = 0.0
        self._due: float | None = None

    def wake(self) -> None:
        """There may be something to claim. Called from the event loop."""
        self._reason.set()

    def answered(self) -> None:
        """A claim begins: what was notified until now will be seen by it."""
        if self._reason.is_set():
            self._reason.clear()
            self._active = True

    def found_some(self) -> None:
        """A claim brought events; more may be scheduled behind them."""
        self._active = True

    def should_look_ahead(self, now: float) -> bool:
        """Whether something happened since the next due event was last looked for, or that is long ago.

        An idle worker sends one statement a poll interval, its claim, so it does not look ahead at each of them.
        """
        since = now - self._looked_ahead
        if self._active:
            return since >= LOOK_AHEAD_PAUSE
        return since >= LOOK_AGAIN * self._poll_interval.total_seconds()

    def looked_ahead(self, now: float, due_in: float | None) -> None:
        """Notes when the next event is due, in seconds from ``now``; ``None``: not within the horizon."""
        self._active = False
        self._looked_ahead = now
        self._due = None if due_in is None else now + due_in

    def pause(self, now: float) -> float:
        """Seconds to sleep unless woken."""
        pause = jittered(self._poll_interval)
        if self._due is not None and self._due > now:
            pause = min(pause, self._due - now)
        return min(pause, LOOK_AHEAD_PAUSE) if self._active else pause

    async def sleep(self, pause: float) -> None:
        """Waits until woken, at most ``pause`` seconds."""
        try:
            async with asyncio.timeout(pause):
                await self._reason.wait()
        except TimeoutError:
            return


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
