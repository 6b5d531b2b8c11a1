"""Fire named schedules when they are due.

Every worker tries, and the database lets one of them fire. The worker's polls say when the next schedule is due.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from surelane_service.cron import Cron, due_times
from surelane_service.engine import Engine
from surelane_service.logs import get_logger
from surelane_service.pool import RETRYABLE, UNAVAILABLE, DatabaseError
from surelane_service.schedules import DueCron
from surelane_worker.handling.registry import Schedule
from surelane_worker.observing.metrics import Metrics
from surelane_worker.observing.readiness import Outage

RETRY = timedelta(seconds=1)

log = get_logger("surelane_worker.duties.scheduler")


class Scheduler:
    """Stores the schedules that come with the handlers, then fires every schedule that is due."""

    def __init__(
        self, engine: Engine, declared: Sequence[Schedule], metrics: Metrics, *, retry: timedelta = RETRY
    ) -> None:
        """``retry`` is the pause after a failure, and the shortest pause between two looks at the schedules."""
        self._engine = engine
        self._declared = list(declared)
        self._metrics = metrics
        self._retry = retry.total_seconds()
        self._unreadable: set[tuple[str, str, str]] = set()
        self._outage = Outage(log, "schedules")
        self._due: float | None = None
        self._changed = asyncio.Event()

    def due_in(self, seconds: float | None) -> None:
        """Set when the next schedule is due: in so many seconds, or never if ``None``."""
        self._due = None if seconds is None else asyncio.get_running_loop().time() + seconds
        self._changed.set()

    async def run(self) -> None:
        """Fire schedules until cancelled."""
        while True:
            succeeded = await self._attempt()
            await asyncio.sleep(self._retry)
            if succeeded:
                await self._until_due()

    async def _attempt(self) -> bool:
        try:
            await self._declare()
            await self._fire_due()
        except UNAVAILABLE as error:
            self._outage.goes_on(error)
            return False
        except (*RETRYABLE, DatabaseError) as error:
            log.error("schedules failed", error=type(error).__name__)  # noqa: TRY400 - its message may quote data
            return False
        self._outage.is_over()
        return True

    async def _declare(self) -> None:
        while self._declared:
            declared = self._declared[0]
            await self._engine.set_cron(
                declared.name,
                kind=declared.kind,
                schedule=declared.schedule,
                payload=declared.payload,
                time_zone=declared.time_zone,
                catch_up=declared.catch_up,
                paused=None,
            )
            self._declared.pop(0)

    async def _until_due(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._due is None or self._due > clock():
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self._due is None else self._due - clock()):
                    await self._changed.wait()

    async def _fire_due(self) -> None:
        while await self._fire_each():
            pass
        self.due_in(await self._engine.next_cron())

    async def _fire_each(self) -> bool:
        """Fire each due schedule once. Return whether one has more missed times than one firing takes."""
        more = False
        for due in await self._engine.due_cron():
            more = await self._fire(due) or more
        return more

    async def _fire(self, due: DueCron) -> bool:
        try:
            times, following = due_times(
                Cron(due.schedule, due.time_zone), due.catch_up, due.next_at, due.now
            )
        except ValueError as error:
            self._report_unreadable(due, error)
            return False
        fired = await self._engine.fire_cron(due.name, due.next_at, times, following)
        if fired:
            self._metrics.sent([due.kind] * fired)
            log.info("schedule fired", schedule=due.name, jobs=fired)
        return following <= due.now

    def _report_unreadable(self, due: DueCron, error: ValueError) -> None:
        """Log once per schedule that it was edited by hand into something unreadable, or lost its time zone."""
        known = (due.name, due.schedule, due.time_zone)
        if known not in self._unreadable:
            self._unreadable.add(known)
            log.error("schedule cannot be read", schedule=due.name, reason=str(error))
