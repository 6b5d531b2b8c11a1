"""The poller: looks at the whole queue at every poll interval, and ahead of the cursors after activity.

A worker in reserve (:mod:`surelane_worker.claiming.position`) looks more rarely. What a look finds wakes the claimer,
as a notification does. It also brings the worker's heartbeat, and tells whether a position is free. While vacuum is
held back, a look at everything reads every dead row. So it has a connection of its own, and no claim waits for it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import compress, cycle
from typing import Any

from surelane_service.durations import jittered
from surelane_service.engine import Engine
from surelane_service.figures import Figures
from surelane_service.fleet import POSITIONS
from surelane_service.lifecycle import sleep_unless
from surelane_service.logs import get_logger
from surelane_worker.claiming.claimer import Cursors
from surelane_worker.claiming.position import Position, Side
from surelane_worker.observing.readiness import Outage, excused
from surelane_worker.sessions import Announcer

JITTER = 0.5
"""Polls wait up to half an interval more: an idle worker sends less than one statement per poll interval."""
LOOK_AHEAD_PAUSE = 0.25
"""Seconds between two peeks, at least. The pause is also at least as long as a peek takes."""
SHARE = 0.05
"""Polls take at most this part of the time, within :data:`LONGEST`."""
LONGEST = timedelta(minutes=1)
"""The longest pause between two slow polls, where the poll interval is shorter."""

RESERVE = 6
"""Workers in reserve that poll at every poll interval. More of them take turns: all together poll as often as these."""
MOST_INTERVALS, LONGEST_RESERVE = 8, timedelta(seconds=40)
"""The longest pause of a worker in reserve: the shorter of so many poll intervals and this."""
SLOW = 1.0
"""Seconds after which a poll is slow: an idle worker then finds out whether its connection for claims still works."""
RETRY = timedelta(seconds=1)
"""The pause after a failed poll."""
PATIENCE = 60.0
"""Seconds that a call for figures waits for the next poll."""

log = get_logger("surelane_worker.claiming.poller")


@dataclass(eq=False)
class Poller:
    """Report to cursors, wake-ups and schedules what is in the queue, and fetch the queue's figures."""

    engine: Engine
    kinds: Sequence[str]
    """Those of all sides."""
    cursors: Cursors
    sides: Sequence[Side]
    """Whose claimers to wake. Their wake-ups share the requests for a look."""
    position: Position
    announcer: Announcer
    interval: timedelta
    max_attempts: int
    on_cron: Callable[[float | None], None]
    """Gets the seconds until the next named schedule is due, or ``None``."""
    on_drained: Callable[[bool], None]
    """Gets, with each poll, whether an operator drained this worker."""
    on_slow: Callable[[], Coroutine[Any, Any, None]]
    """Called when a poll takes long: the network may have lost the claimer's connection, too."""

    def __post_init__(self) -> None:
        self._proving: asyncio.Task[None] | None = None
        self._outage = Outage(log, "polls")
        self._masks = [
            (side.wakeup, [kind in side.slots.kinds for kind in self.kinds]) for side in self.sides
        ]
        """Which of the kinds each wake-up is for."""
        self._workers = 1
        """Workers that are alive, as last measured."""
        self._slow = timedelta()
        """The shortest pause after the last poll, by how long it took."""
        self._wanted: asyncio.Future[Figures] | None = None

    async def run(self) -> None:
        """Poll until cancelled."""
        clock = asyncio.get_running_loop().time
        polled, share, asked = clock(), 0.0, False
        while True:
            # Anew each time: a worker that took a position meanwhile polls sooner.
            due = polled + share * self._period.total_seconds()
            full = not asked or clock() >= due  # a timer may come a little early
            took = await self._peek(full=full)
            if self._outage.on:
                await asyncio.sleep(jittered(RETRY, JITTER))
                asked = False
                continue
            if full:
                self._slow = min(took / SHARE, LONGEST)
                polled, share = clock(), jittered(timedelta(seconds=1), JITTER)
                due = polled + share * self._period.total_seconds()
            await asyncio.sleep(max(min(LOOK_AHEAD_PAUSE, due - clock()), took.total_seconds()))
            asked = await sleep_unless(self.sides[0].wakeup.curious, max(due - clock(), 0.0))

    @property
    def _period(self) -> timedelta:
        """The pause between two polls, without jitter."""
        interval = self.interval
        if not self.position.stands_by():
            turns = min(max((self._workers - POSITIONS) / RESERVE, 1.0), MOST_INTERVALS)
            interval = max(interval, min(interval * turns, LONGEST_RESERVE))
        return max(interval, self._slow)

    async def figures(self) -> Figures:
        """Return the queue's figures, from the next poll or, if that takes too long, from a call of their own."""
        if self._wanted is None:
            self._wanted = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(PATIENCE):
                return await asyncio.shield(self._wanted)
        except TimeoutError:
            return await self.engine.figures()

    async def _peek(self, *, full: bool) -> timedelta:
        """Look at everything, or from the cursors on. Return how long the database took."""
        self.sides[0].wakeup.curious.clear()  # this answers everything asked until now
        slow = asyncio.get_running_loop().call_later(SLOW, self._doubt)
        try:
            with excused(log, "poll failed", self._outage):
                return await self._look(full=full)
        finally:
            slow.cancel()
        return timedelta()

    def _doubt(self) -> None:
        self._proving = asyncio.create_task(self.on_slow())

    async def _look(self, *, full: bool) -> timedelta:
        before = self.cursors.starts(self.kinds)
        peek = await self.engine.peek_events(
            self.kinds,
            2 * self._period,  # no further ahead than until the next poll
            max_attempts=self.max_attempts,
            cursors=None if full else before,
            measure=self._wanted is not None,
            positions_before=self.position.wanted if full else 0,
            worker=self.announcer.due() if full else None,
            clock_offset=self.announcer.clock_offset,
            drains=self.announcer.worker.name if full else None,
        )
        self.cursors.correct(self.kinds, before, peek)
        answers = self.position.answers()
        for wakeup, mask in self._masks:
            wakeup.peeked(peek.now, compress(peek.vts, cycle(mask)), self.position.due if answers else None)
        # Others fire a schedule only if its time has come and no worker did.
        self.on_cron(peek.cron_in if answers or peek.cron_in == 0 else None)
        if peek.position_free:
            self.position.seek()
        if peek.announced is not None:
            self.announcer.sent(announced=peek.announced)
        if peek.drained is not None:
            self.on_drained(peek.drained)
        if peek.figures is not None:
            self.announcer.compared(peek.figures.clock_offset)
            self._workers = peek.figures.workers
        if self._wanted is not None and peek.figures is not None:
            self._wanted.set_result(peek.figures)
            self._wanted = None
        return peek.took
