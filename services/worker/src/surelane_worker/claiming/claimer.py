"""The claimer: claims events while slots are free, and sleeps until something wakes it.

Claims start at cursors: a cursor per lane and kind skips the dead rows of finished events. The rules, and the faults
each of them prevents, are in ``docs/adr``:

- A cursor stands a margin before the newest visibility time that a claim found in its lane. Before any claim, it
  stands a margin before the last peek.
- It moves back to anything that a peek finds behind it: a late commit, or a row that was locked.
- No cursor outlives its connection.
"""

import asyncio
import random
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import zip_longest

from surelane.calls import Connection
from surelane.codec import Codec
from surelane.errors import DatabaseRefused, waits
from surelane.events import Event
from surelane_service.engine import LANES, Engine, Peek, RefusedClaim
from surelane_service.lifecycle import sleep_unless
from surelane_service.logs import get_logger
from surelane_service.pool import Listener
from surelane_worker.handling.routes import name_plainly
from surelane_worker.observing.readiness import Outage, excused
from surelane_worker.observing.tracing import Observer
from surelane_worker.running.slots import Slots
from surelane_worker.worker_settings import WorkerSettings

UNBROKEN_PAUSE = 1.0
"""Seconds of a pause that no wake-up ends."""
PASSED_FOR = 60.0
"""Seconds for which claims pass over an event whose row refused its claim."""
MOST_APART = 50
"""Events that one claim takes one after another. The server keeps 64 subtransactions at hand."""
IN_VAIN = 10
"""Refusals after which the database ends such a claim: all may refuse, and the claim has failed."""
MARGIN = timedelta(seconds=1)
"""How far a cursor stays behind the newest event that was claimed."""
log = get_logger("surelane_worker.claiming.claimer")

Place = tuple[int, str]
"""A lane and a kind."""


@lru_cache(maxsize=64)
def _places(kinds: tuple[str, ...], lanes: int) -> tuple[Place, ...]:
    return tuple((lane, kind) for lane in range(lanes) for kind in kinds)


class Cursors:
    """The cursors of one worker."""

    def __init__(self) -> None:
        self._cursors: dict[Place, datetime] = {}
        self._lanes = LANES
        """The number of lanes that may have a cursor: up to the highest lane that a claim or a peek found in use."""
        self.corrections = 0
        """How often cursors moved back. A claim sent before the last time may not have seen the rows that caused it."""

    def starts(self, kinds: Sequence[str]) -> list[datetime | None]:
        """Return where a claim of ``kinds`` starts, per lane and kind (lane-major). ``None`` is the beginning."""
        return [self._cursors.get(place) for place in _places(tuple(kinds), self._lanes)]

    def advance(self, events: Sequence[Event], corrections: int) -> None:
        """Move cursors forward to a claim's events, unless one moved back since it was sent, at so many corrections."""
        if corrections < self.corrections:
            return
        latest: dict[Place, datetime] = {}
        for event in events:
            if event.lane is not None and event.prior_vt is not None:
                place = (event.lane, event.kind)
                if place not in latest or event.prior_vt > latest[place]:
                    latest[place] = event.prior_vt
        for place, vt in latest.items():
            self._lanes = max(self._lanes, place[0] + 1)
            seen = self._cursors.get(place)
            if seen is None or vt - MARGIN > seen:
                self._cursors[place] = vt - MARGIN

    def correct(self, kinds: Sequence[str], before: Sequence[datetime | None], peek: Peek) -> None:
        """Move cursors back to the events that a peek found behind them.

        A claim during the peek may have taken such an event, or may have missed it. Both look the same here.
        ``before``: the cursors when the peek was sent.
        """
        lanes = len(peek.vts) // max(len(kinds), 1)
        self._lanes = max(self._lanes, lanes)
        # A lane may have come into use since the cursors were read, or be out of use by now.
        for place, was, vt in zip_longest(_places(tuple(kinds), self._lanes), before, peek.vts):
            first = vt if vt is not None and vt <= peek.now else None
            stands = self._cursors.get(place)
            if place[1] in peek.paused:
                self._cursors.pop(place, None)  # its events must not be behind the cursor when it is resumed
                self.corrections += 1
            elif first is not None and (stands is not None or was is None):
                # Even if the cursor is behind the event: a claim under way may have looked before the event was there.
                self._cursors[place] = first if stands is None else min(first, stands)
                self.corrections += 1
            elif stands is None and was is None:
                self._cursors[place] = peek.now - MARGIN

    def forget(self) -> None:
        """Drop every cursor: the next claims scan in full."""
        self._cursors.clear()
        self.corrections += 1


class PassedOver:
    """The events whose rows refuse to be claimed. Claims pass over each for a minute."""

    def __init__(self) -> None:
        self._until: dict[int, float] = {}

    def passed(self) -> list[int]:
        """Return the ids to pass over now."""
        now = time.monotonic()
        while self._until and (first := next(iter(self._until.items())))[1] <= now:
            del self._until[first[0]]
        return list(self._until)

    def note(self, refusals: Iterable[RefusedClaim]) -> None:
        """Pass over these, and log each reason with its events."""
        of_reason: dict[tuple[str, str | None], list[int]] = {}
        for each in refusals:
            of_reason.setdefault((each.sqlstate, each.about), []).append(each.event)
            self._until[each.event] = time.monotonic() + PASSED_FOR
        for (sqlstate, about), events in of_reason.items():
            log.error("these events refuse to be claimed", events=events, sqlstate=sqlstate, object=about)


class Wakeup:
    """Wakes an idle claimer: after a notification, when an event is due, or because a poll found one."""

    def __init__(self, curious: asyncio.Event | None = None) -> None:
        """``curious`` asks for a peek. Wake-ups that share it share the peeks."""
        self._reason = asyncio.Event()
        self.curious = asyncio.Event() if curious is None else curious
        self.active = True
        """Whether a claim found events: more may be scheduled behind them."""
        self._timer: asyncio.TimerHandle | None = None

    def wake(self, *, later: bool = True) -> None:
        """Say that there may be something to claim, now or, unless not ``later``, then."""
        self.active = self.active or later
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
        self._late: asyncio.TimerHandle | None = None
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

    def answer_late(self, seconds: float) -> None:
        """Claim so many seconds later what other workers have left, once for all notifications until then."""
        if self._late is None:
            self._late = asyncio.get_running_loop().call_later(seconds, self._claim_late)

    def _claim_late(self) -> None:
        self._late = None
        self.wakeup.wake(later=False)

    def _go_on(self, pause: float) -> None:
        self._pause = None
        if self._again:
            self.answer(pause)


@dataclass(eq=False)
class Claimer:
    """Claim events for free slots until the worker stops. A worker's claimers share all but ``side``."""

    settings: WorkerSettings
    listener: Listener
    side: Side
    cursors: Cursors
    refusals: PassedOver
    unlimited: Collection[str]
    """The kinds whose limit the database refuses: none of them is claimed."""
    on_claimed: Callable[[Side, Sequence[Event], int], None]
    """Gets the events that a claim found, and how many it asked for."""
    on_crowd: Callable[[Sequence[Event]], None]
    """Gets them, too: they may be of a crowd."""
    observer: Observer
    outage: Outage
    codec: Codec

    def __post_init__(self) -> None:
        self._failures = 0
        self._claiming_since: float | None = None
        self._slept: float | None = None
        """Duration of the idle sleep that just ended, in seconds; ``None`` if notifications are off."""
        self._stopping = False

    async def run(self) -> None:
        """Claim until :meth:`stop`. Events of claims that are under way then are released."""
        while not self._stopping:
            try:
                await self._turn()
            except Exception:
                log.exception("claim crashed; the worker tries again after a pause")
                await self._pause()

    def stop(self) -> None:
        self._stopping = True
        self.side.slots.close()
        self.side.wakeup.wake()

    def claiming_for(self) -> float:
        """Return for how many seconds claims have succeeded without interruption."""
        since = self._claiming_since
        return 0.0 if since is None else asyncio.get_running_loop().time() - since

    def failing(self) -> str | None:
        """Return why the last claim failed; ``None``: it did not."""
        if self._claiming_since is not None:
            return None
        return f"claims fail: {self.outage.why}" if self.outage.why else "nothing was claimed yet"

    async def _turn(self) -> None:
        while not self._stopping and not self.side.slots.free():
            await self.side.slots.freed()
        if not await self._claim_all() and not self._stopping:
            await self._sleep()

    async def _claim_all(self) -> bool:
        """Claim for all free slots at once, then for each share if that found some. Return whether to go on at once."""
        self.side.wakeup.answered()
        free = self.side.slots.free()
        self.side.slots.left_out(free)
        if not free:
            return True
        found = await self._claim(
            [kind for kinds, _ in free for kind in kinds], min(count for _, count in free)
        )
        if found and len(free) > 1:
            for kinds, count in self.side.slots.free():
                await self._claim(kinds, count)
        return found

    async def _claim(self, kinds: list[str], limit: int) -> bool:
        """Claim once. Return whether there were any events."""
        if self._stopping:
            return False
        events: list[Event] | None = None
        began = asyncio.get_running_loop().time()
        slept, self._slept = self._slept, None
        with excused(log, "claim failed; the worker tries again", self.outage):
            events = await self._hand_over(kinds, limit, slept)
        if events is None:
            await self._pause()
        else:
            self._failures = 0
            self._claiming_since = self._claiming_since or began
        return bool(events)

    async def _hand_over(self, kinds: list[str], limit: int, slept: float | None) -> list[Event]:
        """Claim once, hand the events to the slots, and return them."""
        loop = asyncio.get_running_loop()
        began, began_at = loop.time(), time.time_ns()
        events = await self._claim_events(kinds, limit)
        self.observer.metrics.operation.add("receive", loop.time() - began)
        if events:
            self.side.wakeup.active = True
            if slept is not None:
                self.observer.metrics.woken(events, self.settings.lease, slept)
            self.observer.metrics.claimed(events)
            if self.observer.tracing is not None:
                self.observer.tracing.received(events, began_at)
            self.side.slots.accept(events, began)
            self.on_claimed(self.side, events, limit)
            self.on_crowd(events)
        return events

    async def _claim_events(self, kinds: list[str], limit: int) -> list[Event]:
        async with self.listener.bounded() as connection:
            corrections, members = self.cursors.corrections, self.side.slots.kinds
            if self.unlimited:  # known once there is a connection
                kinds, members = self._limited(kinds), self._limited(members)
            try:
                events = await Engine(connection).claim_events(
                    kinds,
                    limit,
                    worker=self.settings.name,
                    max_attempts=self.settings.max_attempts,
                    invisible_for=self.settings.lease,
                    cursors=self.cursors.starts(kinds),
                    member_kinds=members,
                    most_bytes=self.side.slots.bytes_left,
                    passed=self.refusals.passed(),
                )
            except DatabaseRefused as error:
                if waits(error):
                    raise
                events, refusals = await self._claim_apart(connection, kinds, limit)
                if not events and not 0 < len(refusals) < IN_VAIN:
                    raise
        self.cursors.advance(events, corrections)
        for event in events:
            if event.notes is not None:
                name_plainly(event)
        # Events that are not decrypted in time are tried again before their handlers run.
        with self.side.slots.opening(events), suppress(TimeoutError):
            async with asyncio.timeout(2.0):  # where data keys are looked up first
                await self.codec.open_events(events)
        return events

    def _limited(self, kinds: list[str]) -> list[str]:
        return [kind for kind in kinds if kind not in self.unlimited]

    async def _claim_apart(
        self, connection: Connection, kinds: list[str], limit: int
    ) -> tuple[list[Event], list[RefusedClaim]]:
        """Claim where one row may have refused a claim of many: the others are claimed, and it is passed over."""
        events, refusals = await Engine(connection).claim_apart(
            kinds,
            min(limit, MOST_APART),
            worker=self.settings.name,
            max_attempts=self.settings.max_attempts,
            invisible_for=self.settings.lease,
            passed=self.refusals.passed(),
        )
        self.refusals.note(refusals)
        return events, refusals

    async def _pause(self) -> None:
        """Wait after a failure, each time twice as long. A wake-up ends only the part beyond the first second.

        Else a database that answers polls and refuses claims, such as one whose volume is full, gets no pause.
        """
        self._claiming_since = None
        self._failures += 1
        longest = self.settings.poll_interval.total_seconds()
        if self._stopping:
            return
        pause = min(0.1 * 2 ** min(self._failures, 10), longest)
        await asyncio.sleep(min(pause, UNBROKEN_PAUSE))
        self.side.wakeup.answered()
        await self.side.wakeup.sleep(pause - min(pause, UNBROKEN_PAUSE))

    async def _sleep(self) -> None:
        if self._failures:  # there was a pause already
            return
        began = asyncio.get_running_loop().time()
        await self.side.wakeup.sleep()
        if self.settings.notifications:
            self._slept = asyncio.get_running_loop().time() - began
