"""Leases: the claims that this worker holds, and the heartbeats that renew them in batches."""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import timedelta

from surelane_service.engine import DEAD_FOR, Engine, Settled
from surelane_service.logs import get_logger
from surelane_service.pool import RETRYABLE, UNAVAILABLE, DatabaseError
from surelane_worker.handling.context import Stoppable
from surelane_worker.leasing.capacity import Capacity
from surelane_worker.leasing.claim import LOST, Claim, Holder
from surelane_worker.leasing.parts import is_slow, parts_of
from surelane_worker.observing.metrics import Metrics
from surelane_worker.observing.readiness import Outage

LONGEST_PAUSE = DEAD_FOR / 3
"""A third of :data:`DEAD_FOR`: two lost heartbeats must not make a living worker's claims look dead."""
BATCH = 500
LIMIT = 5.0
"""Seconds that a heartbeat may take. Then it is cancelled and sent in parts, so that one event delays no other."""
WATCH = 0.5
"""Seconds between two looks for leases that have run out."""

log = get_logger("surelane_worker.leasing.leases")


class Leases:
    """The claims of this worker, and what they keep in memory."""

    def __init__(
        self, engine: Engine, lease: timedelta, metrics: Metrics, capacity: Capacity, limit: float = LIMIT
    ) -> None:
        """``capacity`` is freed when claims are dropped; a heartbeat may take ``limit`` seconds."""
        self._engine = engine
        self._lease = lease
        self._metrics = metrics
        self._pause = min(lease / 3, LONGEST_PAUSE).total_seconds()
        self._limit = min(limit, self._pause)
        self._outage = Outage(log, "heartbeats")
        self.capacity = capacity
        self.bytes = 0
        """Characters that the claims keep in memory: their events' bodies, and arguments of outcomes."""
        self.held: dict[Claim, Holder] = {}
        """Each claim's holder. A claim has no reference to it: the cycle would keep both in memory after the settle."""

    def ends(self, claimed_at: float) -> float:
        """Return the earliest time at which a claim made or renewed at ``claimed_at`` may no longer stand.

        That is when its lease runs out, or when a rescue ends it because no heartbeat arrived.
        """
        return claimed_at + min(self._lease, DEAD_FOR).total_seconds()

    async def keep(self) -> None:
        """Renew leases until cancelled, and stop work whose lease runs out, even while a heartbeat hangs."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._renew())
            group.create_task(self._watch())

    async def hold(self, work: Stoppable) -> None:
        """Return if the claim still stands. Call it before any effect that must not happen twice.

        A process that was suspended may not have noticed yet that its lease ran out.

        Raises:
            asyncio.CancelledError: the claim no longer stands.
        """
        self.stop_lapsed()
        if work.stopped == LOST:
            await asyncio.sleep(0)  # the handler's task is cancelled here
            raise asyncio.CancelledError(LOST)  # a thread of the handler, or a task it started, is not

    async def _renew(self) -> None:
        pause = self._pause
        while True:
            await asyncio.sleep(pause)
            pause = self._pause if await self._extend_all() else min(self._pause, 1.0)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH)
            self.stop_lapsed()

    async def _extend_all(self) -> bool:
        """Renew every lease. Return whether the database answered for each."""
        claims = [claim for claim in self.held if claim.outcome is None]
        batches: list[Sequence[Claim]] = [
            claims[start : start + BATCH] for start in range(0, len(claims), BATCH)
        ]
        answered = True
        while batches:
            batch = batches.pop(0)
            try:
                await self._extend(batch)
            except (*UNAVAILABLE, DatabaseError) as error:
                answered = False
                if is_slow(error):
                    log.warning("heartbeats are slow", count=len(batch), error=type(error).__name__)
                    if len(batch) > 1:
                        batches += parts_of(batch)
                elif isinstance(error, UNAVAILABLE):
                    self._outage.goes_on(error)
                    return False
                elif not isinstance(error, RETRYABLE):
                    log.error("heartbeats failed", error=type(error).__name__)  # noqa: TRY400 - its message may quote data
        self._outage.is_over()
        return answered

    async def _extend(self, claims: Sequence[Claim]) -> None:
        ends = self.ends(asyncio.get_running_loop().time())
        async with asyncio.timeout(self._limit):
            answers = await self._engine.extend_leases(
                [(claim.event.id, claim.event.claim) for claim in claims], self._lease
            )
        for claim, answer in zip(claims, answers, strict=True):
            if answer is Settled.DONE:
                claim.lease_ends = ends
            elif answer is Settled.STALE:
                self._lose(claim)

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
        self._metrics.lease_lost(claim.event.kind)
        log.warning(
            "lease lost", event_id=claim.event.key, kind=claim.event.kind, attempt=claim.event.attempts
        )
        work.stop(LOST)

    def add(self, work: Holder) -> None:
        """Hold the claims of a piece of work."""
        for claim in work.claims:
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
        self.capacity.free()
