"""A duty that one worker does for all, soon after its start and then every hour."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta

from surelane.errors import Conflict, DatabaseRefused, DatabaseUnavailable
from surelane_service.durations import jittered
from surelane_service.logs import Logger
from surelane_worker.observing.readiness import Outage

FIRST = timedelta(minutes=2)
"""The pause before a worker's first pass: one that fails at its start changes nothing."""
PAUSE = timedelta(hours=1)
"""The pause between passes."""
RETRY = timedelta(minutes=5)
"""The pause after a pass that another transaction or an outage stopped."""
BREATH = 0.05
"""Seconds between steps, which leave the connection to sweeps and rescues."""
FALLBACK = 24
"""Passes of the responder for each one of another worker, which is needed only if the responder hangs."""


class Hourly(ABC):
    """Does a pass of bounded steps every hour, where this worker leads."""

    def __init__(self, log: Logger, what: str, leads: Callable[[], bool], first: timedelta = FIRST) -> None:
        """``leads`` returns whether this worker does what one worker may do for all. ``what`` is for the log."""
        self._log = log
        self._what = what
        self._leads = leads
        self._first = first
        self._outage = Outage(log, what)

    @abstractmethod
    async def pass_once(self) -> bool:
        """Do one pass. Return whether another transaction blocked it."""

    async def run(self) -> None:
        """Do the first pass soon, and then one every hour, until cancelled."""
        pause, left_out = self._first, 0
        while True:
            await asyncio.sleep(jittered(pause))
            pause = PAUSE
            left_out += 1
            if left_out < FALLBACK and not self._leads():
                continue
            left_out = 0
            try:
                if await self.pass_once():
                    pause = RETRY
                self._outage.is_over()
            except DatabaseUnavailable as error:
                self._outage.goes_on(error)
                pause = RETRY
            except Conflict:
                pause = RETRY
            except DatabaseRefused as error:
                self._log.error(f"{self._what} failed", error=type(error).__name__)
