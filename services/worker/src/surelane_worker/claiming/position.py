"""Positions: one of the workers that handle the same kinds answers notifications, and all do while it is full.

A position is an advisory lock of the session that claims, so PostgreSQL frees it when its worker dies:

- 0, the responder, answers every notification: it claims.
- 1, the deputy, answers while the responder has no free slot, and takes its position when it ends.
- Every other worker is in reserve. It answers as the deputy does, and takes turns in polling. It stops listening when
  it has heard many notifications and the responder had slots for all.

Those who answer beside the responder let a random pause go by between two answers, so that few of them claim at once.

A worker that claims an event which was visible for a while knows that none answered: the responder hangs, or those
who listen are full. It then listens again, and answers for some minutes.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from surelane.errors import DatabaseRefused, DatabaseUnavailable
from surelane.events import Event
from surelane_service.engine import Engine
from surelane_service.fleet import POSITIONS
from surelane_service.lifecycle import sleep_unless
from surelane_service.logs import get_logger
from surelane_service.pool import CHANNEL, Listener
from surelane_worker.observing.readiness import excused
from surelane_worker.running.slots import Slots

FULL, FREE, TAKEN = "full", "free", "taken"
"""Payloads of notifications: the responder has no free slot; a position is free; a worker without one took one."""
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
PAUSE, DEPUTYS_PAUSE = 0.5, 0.05
"""The most seconds between two answers of a worker in reserve, and of the deputy."""
PATIENCE = 1000
"""How many notifications in a row a worker in reserve hears without answering. Then it listens no longer."""
CHECKED = 300.0
"""Seconds between two statements that check an idle connection which listens."""
RETRY = 1.0
FAREWELL = 5.0
"""Seconds that a stopping worker waits for the database to free its position."""
LONG = timedelta(seconds=2)
"""The wait of an event from which on its kind is looked at. The database uses the same number."""
SPLIT_PAUSE = 1.0
"""Least seconds between two looks while no events are being moved."""
SPLIT_SHARE = 0.25
"""While events are being moved, steps take at most this part of the time."""

log = get_logger("surelane_worker.claiming.position")


class Wakeup:
    """Wakes an idle claimer: after a notification, when an event is due, or because a poll found one."""

    def __init__(self, curious: asyncio.Event | None = None) -> None:
        """``curious`` asks for a peek. Wake-ups that share it share the peeks."""
        self._reason = asyncio.Event()
        self.curious = asyncio.Event() if curious is None else curious
        self.active = True
        """Whether a claim found events: more may be scheduled behind them."""
        self._timer: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """Say that there may be something to claim, now or later."""
        self.active = True
        self._reason.set()

    def answered(self) -> None:
        """Say that a claim begins: it answers all notifications until now."""
        self._reason.clear()

    async def sleep(self, within: float | None = None) -> None:
        """Wait until there is a reason to claim, at most ``within`` seconds."""
        if self.active:
            self.look_ahead()
        await sleep_unless(self._reason, within)

    def look_ahead(self) -> None:
        """Ask for a peek: the event that is due next may have changed."""
        self.active = False
        self.curious.set()

    def peeked(
        self, now: datetime, vts: Iterable[datetime | None], on_due: Callable[[], None] | None
    ) -> None:
        """Wake at once if a peek found an event to claim. Call ``on_due``, if given, when the next one is due."""
        found = [vt for vt in vts if vt is not None]
        if any(vt <= now for vt in found):
            self._reason.set()
        if self._timer is not None:
            self._timer.cancel()
        due_in = min(((vt - now).total_seconds() for vt in found if vt > now), default=None)
        self._timer = None
        if on_due is not None and due_in is not None:
            self._timer = asyncio.get_running_loop().call_later(due_in, on_due)


@dataclass(eq=False)
class Side:
    """Slots for one sort of events, and what wakes the claimer that fills them.

    A worker's first side takes the ordinary events, its second the commands and interactions, if it handles both.
    """

    wakeup: Wakeup
    slots: Slots

    def __post_init__(self) -> None:
        self._pause: asyncio.TimerHandle | None = None
        self._again = False

    def wake(self) -> None:
        """Claim because of a notification. If no slot is free, the event may overtake the waiting ones."""
        self.slots.let_overtake()
        self.wakeup.wake()

    def answer(self, pause: float) -> None:
        """Do so beside others: at once, or when the pause since the last answer, at most ``pause`` seconds, is over."""
        self._again = self._pause is not None
        if not self._again:
            self.wake()
            seconds = random.uniform(0, pause)  # noqa: S311 - no secret
            self._pause = asyncio.get_running_loop().call_later(seconds, self._go_on, pause)

    def _go_on(self, pause: float) -> None:
        self._pause = None
        if self._again:
            self.answer(pause)


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
        """Return whether this worker claims when it is notified, and when an event is due."""
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
        """Claim, because an event is due. The responder passes it on if it has no free slot."""
        self._answer(self.sides)

    def _answer(self, sides: Sequence[Side]) -> None:
        for side in sides:
            if not self.leads():
                side.answer(DEPUTYS_PAUSE if self.number == 1 else PAUSE)
                continue
            if self.number == 0 and side.slots.full():
                self._pass_on()
            side.wake()

    def wake(self) -> None:
        """Claim, because this worker may have missed notifications."""
        for side in self.sides:
            side.wake()

    def claimed(self, side: Side, events: Sequence[Event], limit: int) -> None:
        """Note a claim's events: whether they were overdue, and whether there may be more than slots."""
        vt, before = events[0].vt, events[0].prior_vt
        if before is not None and (vt - before).total_seconds() - self.lease > OVERDUE and not self.leads():
            self._attend(ATTENTION)
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
            if not await sleep_unless(self._changed, CHECKED if self._listens() else None):
                self._seeks = True
            with excused(log, "position not taken"):
                await self._keep()
                continue
            await asyncio.sleep(RETRY)
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
class CrowdSplitter:
    """Give a workspace with a large backlog of a kind lanes of its own, so that it does not hold up the others.

    Claims report events that have waited long. The database then finds their workspaces and moves them
    (``agent.share_kind``). Every worker tries, and the database lets one at a time do it.
    ``lease``, for which claims stand, tells when an event was claimed.
    """

    engine: Engine
    lease: timedelta

    def __post_init__(self) -> None:
        self._kinds: set[str] = set()
        self._reason = asyncio.Event()

    def claimed(self, events: Sequence[Event]) -> None:
        """Note a claim. If its first event has waited long, look at its kind soon."""
        first = events[0]
        if first.prior_vt is not None and first.vt - first.prior_vt > self.lease + LONG:
            self._kinds.add(first.kind)
            self._reason.set()

    async def run(self) -> None:
        """Look at kinds until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._reason.wait()
            self._reason.clear()
            kinds, self._kinds = self._kinds, set()
            began, pause = loop.time(), SPLIT_PAUSE
            for kind in kinds:
                again = None
                with excused(log, "could not separate workspaces' backlogs", kind=kind):
                    # If it fails, the next claim of an old event brings the kind.
                    again = await self.engine.share_kind(kind)
                if again is not None:
                    self._kinds.add(kind)
                    self._reason.set()
                    pause = min(pause, again.total_seconds())
            await asyncio.sleep(max(pause, (loop.time() - began) * (1 / SPLIT_SHARE - 1)))
