"""Leasing: the claims that this worker holds, the work they belong to, and the heartbeats that renew their leases."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import takewhile
from math import isqrt
from typing import TypeVar

from opentelemetry.trace import SpanContext

from surelane.errors import (
    DatabaseRefused,
    DatabaseUnavailable,
    OutcomeUnknown,
    TransientConflict,
    described,
)
from surelane.events import Event
from surelane_service.engine import DEAD_FOR, MOST_MEMBERS, Engine, Settled
from surelane_service.lifecycle import sleep_unless
from surelane_service.logs import get_logger
from surelane_worker.handling.attempt import Stoppable
from surelane_worker.handling.handler import Handler
from surelane_worker.handling.threads import DRAINED, LOST
from surelane_worker.observing.metrics import Metrics
from surelane_worker.observing.readiness import Outage

Item = TypeVar("Item")

GIVEN_UP = ("55P03", "57014")
"""SQLSTATEs of a server that gave up on a statement: lock_not_available and query_canceled."""


def is_slow(error: BaseException) -> bool:
    """Return whether a call failed because it took too long, by the client's clock or by the server's."""
    cause = error.__cause__
    return (
        isinstance(error, TimeoutError)
        or (isinstance(error, OutcomeUnknown) and isinstance(cause, TimeoutError))
        or getattr(cause, "sqlstate", None) in GIVEN_UP
    )


def parts_of(batch: Sequence[Item], size: int | None = None) -> list[Sequence[Item]]:
    """Split a batch into parts of ``size``, by default the root of its length; a small one into single items.

    A slow batch is sent in parts: then one event that cannot be reached delays no other.
    """
    size = size or (isqrt(len(batch)) if len(batch) > 32 else 1)
    return [batch[start : start + size] for start in range(0, len(batch), size)]


class Capacity:
    """Wakes the claimer when there may be capacity for more events."""

    def __init__(self, wake: Callable[[], None] | None = None) -> None:
        """``wake`` ends the claimer's sleep between claims."""
        self._wake = wake
        self._freed = asyncio.Event()
        self.left_out = False
        """Whether the last claim left out kinds without a free slot. Then a sleeping claimer wakes once one is free."""

    def free(self) -> None:
        self._freed.set()
        if self.left_out and self._wake is not None:
            self._wake()

    async def freed(self, within: float) -> bool:
        """Wait until there may be capacity, at most ``within`` seconds. Return whether there may be."""
        self._freed.clear()
        return await sleep_unless(self._freed, within)


@dataclass(eq=False, slots=True)
class Claim:
    """One claimed event, and the outcome of its attempt once there is one."""

    event: Event
    lease_ends: float
    """The earliest time at which the lease may run out, by the event loop's clock."""
    size: int
    """Characters that it keeps in memory: the event's body, and the outcome's argument while it is settled."""
    outcome: str | None = None
    """The name of its outcome, from the moment it is handed to the settler."""
    cancelled: bool = False
    """Whether the event was asked to be cancelled. Then its lease is not renewed."""
    argument: str | None = None
    """What the outcome needs besides its name, as JSON text: see ``agent.settle``."""
    followers: Sequence["Claim"] = ()
    """The claims that end with its outcome: the run of its event got their events, too."""
    settling_since: int = 0
    """When its outcome was handed over, in nanoseconds since 1970; kept for a sampled attempt."""
    span: SpanContext | None = None
    """The span of its attempt, if that is sampled."""

    @property
    def named(self) -> dict[str, str]:
        return {"event_id": self.event.key, "kind": self.event.kind}


class Work:
    """The claims that one slot runs: a single event, or the events of a group in order.

    Attributes:
        handler: the handler of its next events.
        since: since when it has waited for a slot, by the event loop's clock.
        head: the claim that stands for a run of several events, if their handler has a ``debounce``.
        stopped: why it stops, once it does.
        overdue: returns whether a function of its handler goes on in a thread, after its end was asked for.
        blocked: the line at which its handler has blocked the event loop.
    """

    __slots__ = ("blocked", "claims", "handler", "head", "overdue", "since", "stopped", "task")

    def __init__(self, handler: Handler, events: Iterable[Event], lease_ends: float, since: float) -> None:
        self.handler = handler
        self.claims = [Claim(event, lease_ends, len(event.body)) for event in events]
        self.since = since
        self.task: asyncio.Task[None] | None = None
        self.head: Claim | None = None
        self.stopped: str | None = None
        self.overdue: Callable[[], bool] = bool
        self.blocked: str | None = None

    @property
    def named(self) -> dict[str, str]:
        """The event and the kind that it handles now, for logs."""
        claim = self._first()
        return {"kind": self.handler.kinds[0]} if claim is None else claim.named

    @property
    def brings_more(self) -> bool:
        """Whether its group probably has more events, which can be claimed once these are settled."""
        return len(self.claims) > MOST_MEMBERS

    def next_run(self, handlers: Mapping[str, Handler]) -> list[Claim]:
        """Return the next claims, in order, of :attr:`handler`: a group may have events of several kinds."""
        left = (claim for claim in self.claims if claim.outcome is None)
        return list(takewhile(lambda claim: handlers[claim.event.kind] is self.handler, left))

    def goes_on(self, handlers: Mapping[str, Handler]) -> bool:
        """Switch to the handler of the next claim. Return whether there is one."""
        claim = self._first()
        if claim is not None:
            self.handler = handlers[claim.event.kind]
        return claim is not None

    def is_later(self, claim: Claim) -> bool:
        """Return whether a claim waits for the handler of an earlier event of its group, or follows one."""
        if self.head is not None:
            return claim is not self.head
        return not self.handler.grouped and claim is not self._first()

    def _first(self) -> Claim | None:
        return next((claim for claim in self.claims if claim.outcome is None), None)

    def wind_up(self) -> None:
        """Let the running handler finish, and start no further one."""
        if self.stopped is None:
            self.stopped = DRAINED

    def stop(self, why: str) -> None:
        """Cancel the handler, or keep it from starting."""
        self.stopped = why
        if self.task is not None:
            self.task.cancel()


def works_of(
    events: Iterable[Event], handlers: Mapping[str, Handler], lease_ends: float, now: float
) -> list[Work]:
    """Return claimed events as work: the events of one group together, in the order in which they happened."""
    works = []
    grouped: dict[str, list[Event]] = {}
    for event in events:
        if event.group_key is None:
            works.append(Work(handlers[event.kind], (event,), lease_ends, now))
        else:
            grouped.setdefault(event.group_key, []).append(event)
    for members in grouped.values():
        members.sort(key=lambda event: (event.event_ts, event.id))
        works.append(Work(handlers[members[0].kind], members, lease_ends, now))
    return works


OVERDUE, ASKING = 1.2, 1.0
"""Pauses after which a heartbeat is overdue, and seconds that its answer may take."""
LONGEST_PAUSE = DEAD_FOR / 3
"""A third of :data:`DEAD_FOR`: two lost heartbeats must not make a living worker's claims look dead."""
LIMIT = 5.0
"""Seconds that a heartbeat may take. Then it is cancelled and sent in parts."""

log = get_logger("surelane_worker.leasing")


@dataclass(eq=False)
class Leases:
    """The claims of this worker, and what they keep in memory."""

    engine: Engine
    lease: timedelta
    metrics: Metrics
    capacity: Capacity
    """Freed when claims are dropped."""

    def __post_init__(self) -> None:
        self._pause = min(self.lease / 3, LONGEST_PAUSE).total_seconds()
        self._outage = Outage(log, "heartbeats")
        self._soon = asyncio.Event()
        self.bytes = 0
        """Characters that the claims keep in memory: their events' bodies, and arguments of outcomes."""
        self.opening: set[tuple[int, int]] = set()
        """Claims whose events are being decrypted: they are held once that has ended."""
        self.held: dict[Claim, Work] = {}
        """The work of each claim. A claim has no reference to it: the cycle would keep both after the settle."""
        self._latest: dict[int, Claim] = {}
        """The newest claim of each event."""

    def ends(self, claimed_at: float) -> float:
        """Return when the lease of a claim made or renewed at ``claimed_at`` runs out, or a rescue ends it."""
        return claimed_at + min(self.lease, DEAD_FOR).total_seconds()

    async def keep(self) -> None:
        """Renew leases until cancelled, and stop work whose lease runs out, even while a heartbeat hangs."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._renew())
            group.create_task(self._watch())

    async def hold(self, work: Stoppable) -> None:
        """Return if the claim still stands, else cancel. Call it before any effect that must not happen twice.

        A process that was suspended may not have noticed yet that its lease ran out. Where a heartbeat is overdue, the
        claim may have been taken before its lease ran out: by a failover that found no session, or by a clock that was
        set. So the database is asked first. One that does not answer stops nothing.
        """
        self.stop_lapsed()
        due = self.ends(asyncio.get_running_loop().time()) - OVERDUE * self._pause
        overdue = [claim for claim, of in self.held.items() if of is work and claim.lease_ends < due]
        if work.stopped is None and overdue:
            with suppress(DatabaseUnavailable, DatabaseRefused, TimeoutError):
                async with asyncio.timeout(ASKING):
                    await self._extend(overdue)
        if work.stopped == LOST:
            await asyncio.sleep(0)  # the handler's task is cancelled here
            raise asyncio.CancelledError(LOST)  # a thread of the handler, or a task it started, is not

    async def _renew(self) -> None:
        pause = self._pause
        while True:
            await sleep_unless(self._soon, pause)
            self._soon.clear()
            pause = self._pause if await self._extend_all() else min(self._pause, 1.0)

    def renew_soon(self) -> None:
        """Renew all leases now. While this worker had no session, others may have ended its claims."""
        self._soon.set()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            self.stop_lapsed()

    async def _extend_all(self) -> bool:
        """Renew every lease. Return whether the database answered for each."""
        soon = asyncio.get_running_loop().time() + self._pause
        # An outcome that the server has not taken for long keeps its claim: else its handler would run again.
        claims = [
            claim
            for claim in self.held
            if not claim.cancelled and (claim.outcome is None or claim.lease_ends < soon)
        ]
        batches = parts_of(claims, 500)
        answered = True
        while batches:
            batch = batches.pop(0)
            try:
                await self._extend(batch)
            except (DatabaseUnavailable, DatabaseRefused, TimeoutError) as error:
                answered = False
                if is_slow(error):
                    log.warning("heartbeats are slow", count=len(batch), **described(error))
                elif isinstance(error, DatabaseUnavailable):
                    self._outage.goes_on(error)
                    return False
                elif len(batch) == 1 and not isinstance(error, TransientConflict):
                    log.error("heartbeat failed", **batch[0].named, **described(error))  # noqa: TRY400 - its traceback says no more
                if len(batch) > 1:
                    batches += parts_of(batch)  # one event that is slow or refuses keeps no other from it
        self._outage.is_over()
        return answered

    async def _extend(self, claims: Sequence[Claim]) -> None:
        ends = self.ends(asyncio.get_running_loop().time())
        async with asyncio.timeout(min(LIMIT, self._pause)):
            answers = await self.engine.extend_leases(
                [(claim.event.id, claim.event.claim) for claim in claims], self.lease
            )
        for claim, answer in zip(claims, answers, strict=True):
            if answer is Settled.DONE:
                claim.lease_ends = ends
            elif answer is Settled.STALE:
                self._lose(claim)

    async def outlast(self, claim: Claim) -> None:
        """Renew the lease of a cancelled claim once, so that its threads may end before its undos begin."""
        ends, event = self.ends(asyncio.get_running_loop().time()), claim.event
        try:
            answer = await self.engine.outlast(event.id, event.claim, min(self.lease, DEAD_FOR))
        except (DatabaseUnavailable, DatabaseRefused):  # then the undos begin when its grace is over
            return
        if answer is Settled.DONE:
            claim.lease_ends = ends

    def stop_lapsed(self) -> None:
        """Stop the work whose lease has run out: another worker may have claimed it by now."""
        now = asyncio.get_running_loop().time()
        for claim in [claim for claim in self.held if claim.lease_ends < now]:
            self._lose(claim)

    def _lose(self, claim: Claim) -> None:
        # A claim settled meanwhile answers stale to a heartbeat that was sent before. Its lease was not lost.
        work = self.held.get(claim)
        if work is None or claim.outcome is not None or work.stopped == LOST:
            return
        self.metrics.lease_losses[claim.event.kind] += 1
        log.warning("lease lost", **claim.named, attempt=claim.event.attempts)
        work.stop(LOST)

    def known(self) -> list[tuple[int, int]]:
        """Return all claims of the worker, by event and number."""
        return [*self.opening, *((claim.event.id, claim.event.claim) for claim in self.held)]

    def add(self, work: Work) -> None:
        """Hold the claims of a work. An earlier claim of the same event is lost.

        A failover may have lost it on the server alone: then both have one number, and no fence tells them apart.
        """
        for claim in work.claims:
            if (earlier := self._latest.get(claim.event.id)) is not None:
                self._lose(earlier)
            self._latest[claim.event.id] = claim
            self.held[claim] = work
            self.bytes += claim.size

    def weigh(self, claim: Claim, size: int) -> None:
        """Add ``size`` characters to what a claim keeps in memory."""
        if claim in self.held:
            claim.size += size
            self.bytes += size

    def drop(self, claims: Iterable[Claim]) -> None:
        """Forget claims that are settled or lost."""
        for claim in claims:
            if self.held.pop(claim, None) is not None:
                self.bytes -= claim.size
                if self._latest.get(claim.event.id) is claim:
                    del self._latest[claim.event.id]
        self.capacity.free()
