"""The poll: looks at the whole queue every poll interval, and ahead after activity, beside the claims.

It claims nothing, and it has a connection of its own: while vacuum is held back, looking at everything means to walk
over every dead row, and neither a claim nor a notification may wait for that.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta

from surelane_service.engine import Engine
from surelane_service.figures import Figures
from surelane_service.logs import get_logger
from surelane_service.pool import RETRYABLE, UNAVAILABLE, DatabaseError
from surelane_worker.claiming.cursors import Cursors
from surelane_worker.claiming.wakeup import Wakeup
from surelane_worker.handling.retry import jittered

JITTER = 0.5
"""An idle worker's polls, announcements, sweeps and rescues together are at most one statement a poll interval."""
LOOK_AHEAD_PAUSE = 0.25
"""Seconds between peeks at least, however much is going on; and at least as long as a peek takes."""
SHARE = 0.05
"""Polls take at most this part of the time, up to a point."""
LONGEST = timedelta(minutes=1)
"""However long a poll takes, the next one is not put off for longer than this, or than the poll interval."""

PATIENCE = 10.0
"""Seconds for which whoever wants figures waits for a poll."""

log = get_logger("surelane_worker.claiming.poller")


class Poll:
    """Tells cursors, wake-ups and schedules what there is to wait for, and brings the queue's figures along."""

    def __init__(
        self,
        engine: Engine,
        kinds: Sequence[str],
        cursors: Cursors,
        wakeup: Wakeup,
        *,
        interval: timedelta,
        max_attempts: int,
        on_cron: Callable[[float | None], None],
    ) -> None:
        """``on_cron`` is told in how many seconds the next named schedule is due."""
        self._engine = engine
        self._kinds = list(kinds)
        self._cursors = cursors
        self._wakeup = wakeup
        self._interval = interval
        self._max_attempts = max_attempts
        self._on_cron = on_cron
        self._period = interval
        self._wanted: asyncio.Future[Figures] | None = None

    async def run(self) -> None:
        """Polls until cancelled."""
        clock = asyncio.get_running_loop().time
        due, asked = 0.0, False
        while True:
            full = not asked or clock() >= due  # a timer may come a little early
            took = await self._peek(full=full)
            if full:
                self._period = max(self._interval, min(took / SHARE, LONGEST))
                due = clock() + jittered(self._period, JITTER)
            await asyncio.sleep(max(min(LOOK_AHEAD_PAUSE, due - clock()), took.total_seconds()))
            asked = await self._wakeup.asked(within=max(due - clock(), 0.0))

    async def figures(self) -> Figures:
        """The queue's figures: the next poll brings them along, unless that is long in coming.

        Raises:
            UNAVAILABLE: the database is not there.
            NotMeasured: there are none.
        """
        if self._wanted is None:
            self._wanted = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(PATIENCE):
                return await asyncio.shield(self._wanted)
        except TimeoutError:
            return await self._engine.figures()

    async def _peek(self, *, full: bool) -> timedelta:
        """Looks at everything, or from the cursors on; returns how long the database took."""
        self._wakeup.peeks()
        try:
            return await self._look(full=full)
        except (*UNAVAILABLE, *RETRYABLE):
            pass  # what claims says so
        except DatabaseError as error:
            log.error("poll failed", error=type(error).__name__)  # noqa: TRY400 - its message may quote data
        return timedelta()

    async def _look(self, *, full: bool) -> timedelta:
        before = self._cursors.starts(self._kinds)
        peek = await self._engine.peek_events(
            self._kinds,
            2 * self._period,  # no further ahead than until the next poll
            max_attempts=self._max_attempts,
            cursors=None if full else before,
            measure=self._wanted is not None,
        )
        self._cursors.correct(self._kinds, before, peek)
        self._wakeup.peeked(peek)
        self._on_cron(peek.cron_in)
        if self._wanted is not None and peek.figures is not None:
            self._wanted.set_result(peek.figures)
            self._wanted = None
        return peek.took
