"""What workers drop for good: old history, and what belongs to owners that have removed the app.

One worker does it for all, soon after its start and then every hour.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta

from surelane.errors import Conflict, DatabaseRefused, DatabaseUnavailable
from surelane_service.durations import jittered
from surelane_service.engine import Engine
from surelane_service.logs import get_logger
from surelane_worker.observing.readiness import Outage

FIRST = timedelta(minutes=2)
"""The pause before a worker's first pass: a worker that fails at its start changes nothing."""
PAUSE = timedelta(hours=1)
"""The pause between passes."""
RETRY = timedelta(minutes=5)
"""The pause after a pass that another transaction or an outage stopped."""
BREATH = 0.05
"""Seconds between steps, which leave the connection to sweeps and rescues."""
FALLBACK = 24
"""Passes of the responder for each one of another worker, which is needed only if the responder hangs."""
WAIT = 1.0
"""Seconds between looks at events that have not ended yet."""
PATIENCE = 300
"""Most such looks of one pass."""

log = get_logger("surelane_worker.retention")


class Hourly(ABC):
    """Does a pass of bounded steps every hour, where this worker leads."""

    what: str
    """For the log."""

    def __init__(
        self,
        engine: Engine,
        older_than: timedelta | None,
        leads: Callable[[], bool],
        *,
        first: timedelta = FIRST,
    ) -> None:
        """Drop through ``engine`` what is ``older_than`` that; ``None``: nothing.

        ``leads`` returns whether this worker does what one worker may do for all.
        """
        self._engine = engine
        self._older_than = older_than
        self._leads = leads
        self._first = first
        self._outage = Outage(log, self.what)

    @abstractmethod
    async def pass_once(self) -> bool:
        """Do one pass. Return whether something blocked it."""

    async def run(self) -> None:
        """Do the first pass soon, and then one every hour, until cancelled."""
        if self._older_than is None:
            return
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
                failed = f"{self.what} failed"
                log.error(failed, error=type(error).__name__)  # noqa: TRY400 - its message may quote data


class Retention(Hourly):
    """Drops history that is older than this worker's setting, with its steps and signals.

    Workers may have different settings: the shortest one counts, because what it drops is gone for all.
    """

    what = "retention"

    async def pass_once(self) -> bool:
        """Drop what is old enough, in bounded steps. Return whether another transaction blocked it."""
        older_than = self._older_than
        assert older_than is not None  # noqa: S101 - or it would not run
        after: int | None = 0
        dropped, blocked = 0, False
        while after is not None:
            step = await self._engine.drop_history(older_than, after)
            after, dropped, blocked = step.after, dropped + step.dropped, blocked or step.blocked
            await asyncio.sleep(BREATH)
        if dropped:
            log.info("old history dropped", chunks_or_rows=dropped, older_than=str(older_than))
        if blocked:
            log.warning("history is locked by another transaction; retention tries again in five minutes")
        return blocked


class Uninstalls(Hourly):
    """Erases what belongs to owners that removed the app for longer than a grace, and did not install it again."""

    what = "erasing after uninstalls"

    def __init__(
        self,
        engine: Engine,
        grace: timedelta | None,
        name: str,
        leads: Callable[[], bool],
        *,
        first: timedelta = FIRST,
    ) -> None:
        """Erase through ``engine``, after ``grace``; ``None``: nothing. ``name`` is the worker's, for the receipt."""
        super().__init__(engine, grace, leads, first=first)
        self._by = f"worker {name}"

    async def pass_once(self) -> bool:
        """Erase what is due, in bounded steps. Return whether events that do not end stopped it."""
        assert self._older_than is not None  # noqa: S101 - or it would not run
        waits = 0
        while (step := await self._engine.erase_uninstalled(self._older_than, self._by)) is not None:
            if step.done:
                # The key is in the log alone: it proves whose erasure the receipt is about.
                named = {"owner": step.owner, "receipt": step.receipt, "key": step.key}
                log.info("erased what belonged to an owner that removed the app", **named)
            waits += step.waiting > 0
            if waits > PATIENCE:
                log.warning("events of an owner that removed the app do not end", owner=step.owner)
                return True
            await asyncio.sleep(WAIT if step.waiting else BREATH)
        return False
