"""Cron: fires named schedules when they are due. Every worker tries; the database lets one of them."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from surelane.cron import Cron, due_times
from surelane.logs import get_logger
from surelane.pool import RETRYABLE, UNAVAILABLE, DatabaseError
from surelane.queue import Queue
from surelane.schedules import DueCron
from surelane_worker.outage import Outage
from surelane_worker.retry import jittered
from surelane_worker.schedule import Schedule

LONGEST_PAUSE = timedelta(seconds=30)
"""A schedule that somebody has just created is seen after this at the latest, and its jitter."""
RETRY = timedelta(seconds=1)

log = get_logger("surelane_worker.maintenance.cron")


class CronDuty:
    """Declares the schedules that come with the handlers, then fires whatever is due."""

    def __init__(self, queue: Queue, declared: Sequence[Schedule]) -> None:
        self._queue = queue
        self._declared = list(declared)
        self._unreadable: set[tuple[str, str, str]] = set()
        self._outage = Outage(log, "schedules")

    async def run(self) -> None:
        """Fires until cancelled; sleeps until the next schedule is due, at most half a minute."""
        while True:
            pause = RETRY.total_seconds()
            try:
                await self._declare()
                pause = await self._fire_due()
                self._outage.is_over()
            except UNAVAILABLE as error:
                self._outage.goes_on(error)
            except (*RETRYABLE, DatabaseError) as error:
                log.error("schedules failed", error=type(error).__name__)  # noqa: TRY400 - its message may quote data
            await asyncio.sleep(pause)

    async def _declare(self) -> None:
        while self._declared:
            declared = self._declared[0]
            await self._queue.set_cron(
                declared.name,
                kind=declared.kind,
                schedule=declared.schedule,
                payload=declared.payload,
                time_zone=declared.time_zone,
                catch_up=declared.catch_up,
                paused=None,
            )
            self._declared.pop(0)

    async def _fire_due(self) -> float:
        """Fires what is due; returns how long to sleep."""
        while await self._fire_once():
            pass
        following = await self._queue.next_cron()
        longest = jittered(LONGEST_PAUSE)
        return longest if following is None else min(following, longest)

    async def _fire_once(self) -> bool:
        """Fires each due schedule once; returns whether one of them has more to catch up than fits into once."""
        more = False
        for due in await self._queue.due_cron():
            more = await self._fire(due) or more
        return more

    async def _fire(self, due: DueCron) -> bool:
        try:
            times, following = due_times(
                Cron(due.schedule, due.time_zone), due.catch_up, due.next_at, due.now
            )
        except ValueError as error:
            self._complain(due, error)
            return False
        fired = await self._queue.fire_cron(due.name, due.next_at, times, following)
        if fired:
            log.info("schedule fired", schedule=due.name, jobs=fired)
        return following <= due.now

    def _complain(self, due: DueCron, error: ValueError) -> None:
        """Once for each schedule: somebody wrote it into the table by hand, or its time zone is gone."""
        known = (due.name, due.schedule, due.time_zone)
        if known not in self._unreadable:
            self._unreadable.add(known)
            log.error("schedule cannot be read", schedule=due.name, reason=str(error))
