"""Positions: one of the workers that handle the same kinds answers notifications, and all do while it is busy.

A position is an advisory lock of the session that claims, so PostgreSQL frees it when its worker dies:

- 0, the responder, answers every notification: it claims.
- 1, the deputy, claims a moment after a notification. An event that is still there tells it that none answered: the
  responder is dead, or hangs. The deputy then answers at once, and takes the position if it is free.
- Every other worker is in reserve. It takes turns in polling. It stops listening when it has heard many notifications
  and the responder had slots for all.

While more than half of the responder's slots are taken, all that listen answer at once.

Those who answer beside the responder let a random pause go by between two answers, so that few of them claim at once.

A worker that claims an event which was visible for a while knows that none answered: the responder hangs, or those
who listen are full. It then listens again, and answers for some minutes.

The poller looks at the whole queue at every poll interval, and ahead of the cursors after activity. A worker in reserve
looks more rarely. What a look finds wakes the claimer, as a notification does. It also brings the worker's heartbeat,
and tells whether a position is free. While vacuum is held back, a look at everything reads every dead row. So it has a
connection of its own, and no claim waits for it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import compress, cycle
from typing import Any

from surelane.errors import DatabaseRefused, DatabaseUnavailable
from surelane.events import Event
from surelane_service.common.durations import jittered
from surelane_service.engine import Engine
from surelane_service.figures import Figures
from surelane_service.fleet import POSITIONS
from surelane_service.lifecycle import sleep_unless
from surelane_service.logs import get_logger
from surelane_service.pool import CHANNEL, Listener
from surelane_worker.claiming.claimer import Cursors, Side
from surelane_worker.observing.readiness import Outage, excused
from surelane_worker.sessions import Announcer

FULL, FREE, TAKEN = "full", "free", "taken"
"""Payloads of notifications: the responder is busy; a position is free; a worker without one took one."""
INTERACTIVE = "interactive"
"""The payload where a person waits for a command or an interaction. All others say that there may be another event."""
OVERDUE = 0.5
"""Seconds after which no worker has answered for an event that is still visible."""
ATTENTION = 300.0
"""Seconds for which a worker answers after it found an overdue event."""
PASSED_ON = 2.0
"""Seconds for which listeners answer after the responder passed a notification on."""
PASS_ON_PAUSE = 1.0
"""Seconds between two of those."""
HESITATION = 0.1
"""Seconds after a notification in which the responder answers. Then the deputy claims what is left."""
LEFT = HESITATION / 2
"""Seconds for which an event that the deputy claims was visible, if none answered."""
PAUSE, DEPUTYS_PAUSE = 0.5, 0.05
"""The most seconds between two answers of a worker in reserve, and of the deputy."""
PATIENCE = 1000
"""How many notifications in a row a worker in reserve hears without answering. Then it listens no longer."""
FAREWELL = 5.0
"""Seconds that a stopping worker waits for the database to free its position."""

JITTER = 0.5
"""Polls wait up to half an interval more: an idle worker sends less than one statement per poll interval."""
SHARE = 0.05
"""Polls take at most this part of the time, within :data:`LONGEST`."""
LONGEST = timedelta(minutes=1)
"""The longest pause between two slow polls, where the poll interval is shorter."""

RESERVE = 6
"""Workers in reserve that poll at every poll interval. More of them take turns: all together poll as often as these."""
MOST_INTERVALS, LONGEST_RESERVE = 8, timedelta(seconds=40)
"""The longest pause of a worker in reserve: the shorter of so many poll intervals and this."""
FIGURES_WITHIN = 60.0
"""Seconds that a call for figures waits for the next poll."""

log = get_logger("surelane_worker.claiming.position")


@dataclass(eq=False)
class Position:
    """This worker's position: it takes a free one, and listens and answers notifications accordingly."""

    sides: Sequence[Side]
    """What this worker claims for, the ordinary events first."""
    lease: float
    """Seconds that a claim stands."""
    notifications: bool
    """False behind a transaction pooler: no worker listens, and every one polls."""
    listener: Listener
    kinds: Sequence[str]

    def __post_init__(self) -> None:
        self.listener.hear(CHANNEL, self.heard)
        self.number: int | None = None
        self._attentive_until = self._passed_on_at = float("-inf")
        self._patience = PATIENCE
        self._logged: int | None = None
        self._resigned = self._passes_on = False
        self._seeks = self.notifications
        self._changed, self._news = asyncio.Event(), asyncio.Event()

    def leads(self) -> bool:
        """Return whether this worker does what one worker may do for all."""
        return self.number == 0 or not self.notifications

    def stands_by(self) -> bool:
        """Return whether this worker does what two may do for all: it polls at every poll interval."""
        return not self.notifications or self.number is not None

    def answers(self) -> bool:
        """Return whether this worker claims when notified, and when an event is due: at once, or a moment later."""
        return self.stands_by() or self.attends()

    def attends(self) -> bool:
        """Return whether it does so at once."""
        return self.leads() or asyncio.get_running_loop().time() < self._attentive_until

    def _listens(self) -> bool:
        return self.notifications and not self._resigned and (self._patience > 0 or self.stands_by())

    @property
    def wanted(self) -> int:
        """How many positions are better than this worker's; 0 while it is about to try for them."""
        if self._resigned or self._seeks or not self.notifications:
            return 0
        return POSITIONS if self.number is None else self.number

    def heard(self, payload: str) -> None:
        """Answer a notification, or leave it to others."""
        if payload == TAKEN:
            self._news.set()
        if payload == TAKEN or (payload == FULL and self.number == 0):
            return
        if payload == FULL:
            self._attend(PASSED_ON)
        elif payload == FREE:
            self.seek()
        elif not self.answers():
            self._patience -= 1
            if self._patience == 0:
                self._changed.set()
        if self.answers():
            if payload != INTERACTIVE:
                self._answer(self.sides[:1])
            if payload:  # the insert of an ordinary event is not worth a second claim
                self._answer(self.sides[1:])

    def due(self) -> None:
        """Claim, because an event is due. The responder passes it on if it is busy."""
        self._answer(self.sides)

    def _answer(self, sides: Sequence[Side]) -> None:
        for side in sides:
            if self.leads():
                if self.number == 0 and side.slots.busy():
                    self._pass_on()
                side.wake()
            elif self.attends():
                side.answer(DEPUTYS_PAUSE if self.number == 1 else PAUSE)
            else:
                side.answer_late(HESITATION)

    def wake(self) -> None:
        """Claim, because this worker may have missed notifications."""
        for side in self.sides:
            side.wake()

    def claimed(self, side: Side, events: Sequence[Event], limit: int) -> None:
        """Note a claim's events: whether they were overdue, and whether there may be more than slots."""
        vt, before = events[0].vt, events[0].prior_vt
        waited = 0.0 if before is None else (vt - before).total_seconds() - self.lease
        if waited > (LEFT if self.number == 1 else OVERDUE) and not self.leads():
            if not self.attends():
                self.seek()
            self._attend(ATTENTION if waited > OVERDUE else PASSED_ON)
        if self.number == 0 and len(events) >= limit and side.slots.full():
            self._pass_on()

    def _attend(self, seconds: float) -> None:
        if self._patience <= 0:
            self._changed.set()
        self._patience = PATIENCE
        self._attentive_until = max(self._attentive_until, asyncio.get_running_loop().time() + seconds)

    def _pass_on(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._passed_on_at >= PASS_ON_PAUSE:
            self._passed_on_at = now
            self._passes_on = True
            self._changed.set()

    def seek(self) -> None:
        """Try for a better position: one may be free."""
        if not self._resigned and self.notifications:
            self._seeks = True
            self._changed.set()

    def _taken(self, number: int | None) -> None:
        """Note the position that the session has now. The responder claims at once: until now none answered."""
        self._seeks = False
        if number == self.number:
            return
        self.number = number
        self._news.set()
        if number != self._logged:  # the same one again was lost with the connection only
            log.info("position taken", position=number)
        self._logged = number
        if number == 0:
            self.wake()

    async def news(self, within: float) -> None:
        """Wait ``within`` seconds, or until this worker or another one has taken a position."""
        await sleep_unless(self._news, within)
        self._news.clear()

    def lost(self) -> None:
        """Note that the session has ended, and the position with it."""
        self.number = None
        self.seek()

    async def run(self) -> None:
        """Keep the position until cancelled. A worker that listens checks its connection, too."""
        while True:
            # An idle connection that listens is checked by a statement.
            if not await sleep_unless(self._changed, 300.0 if self._listens() else None):
                self._seeks = True
            with excused(log, "position not taken"):
                await self._keep()
                continue
            await asyncio.sleep(1.0)
            self.seek()

    async def _keep(self) -> None:
        seeks, passes_on, self._passes_on = self._seeks, self._passes_on, False
        self._changed.clear()
        if seeks:
            async with self.listener.connection() as connection:
                self._taken(await Engine(connection).take_position(self.kinds, self.number))
        if await self.listener.listen(wanted=self._listens()):
            self.wake()
        if passes_on:
            async with self.listener.connection() as connection:
                await Engine(connection).pass_on()

    async def resign(self) -> None:
        """Give up the position, so that another worker takes it at once. This one claims no longer."""
        self._resigned, self._seeks = True, False
        self._changed.set()
        if self.number is None:
            return
        try:
            async with asyncio.timeout(FAREWELL), self.listener.connection() as connection:
                number, self.number = self.number, None
                if number is not None:
                    await Engine(connection).leave_position(self.kinds, number)
        except (DatabaseUnavailable, DatabaseRefused, TimeoutError):
            log.info("position not given up; it is free when the connection ends")


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
                await asyncio.sleep(jittered(timedelta(seconds=1), JITTER))
                asked = False
                continue
            if full:
                self._slow = min(took / SHARE, LONGEST)
                polled, share = clock(), jittered(timedelta(seconds=1), JITTER)
                due = polled + share * self._period.total_seconds()
            # Between two peeks, at least.
            await asyncio.sleep(max(min(0.25, due - clock()), took.total_seconds()))
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
            async with asyncio.timeout(FIGURES_WITHIN):
                return await asyncio.shield(self._wanted)
        except TimeoutError:
            return await self.engine.figures()

    async def _peek(self, *, full: bool) -> timedelta:
        """Look at everything, or from the cursors on. Return how long the database took."""
        self.sides[0].wakeup.curious.clear()  # this answers everything asked until now
        # An idle worker then finds out whether its connection for claims still works.
        slow = asyncio.get_running_loop().call_later(1.0, self._doubt)
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
        self.on_cron(peek.cron_in if self.position.attends() or peek.cron_in == 0 else None)
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
