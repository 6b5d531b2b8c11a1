"""Heartbeats: renews the leases of everything held, in batches, and stops work whose lease is lost."""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import timedelta

from surelane_service.engine import DEAD_FOR, Engine, Settled
from surelane_service.logs import get_logger
from surelane_service.pool import RETRYABLE, UNAVAILABLE, DatabaseError
from surelane_worker.handling.context import Stoppable
from surelane_worker.observing.metrics import Metrics
from surelane_worker.observing.outage import Outage
from surelane_worker.running.work import LOST, Claim, Work
from surelane_worker.settling.parts import SLOW, parts_of

LONGEST_PAUSE = DEAD_FOR / 3
"""A third of :data:`DEAD_FOR`: two lost heartbeats must not make a living worker's claims look dead."""
BATCH = 500
LIMIT = 5.0
"""Seconds that a heartbeat may take. Then it is cancelled and sent in parts, so that one event delays no other."""
WATCH = 0.5
"""Seconds between two looks at which leases have run out."""

log = get_logger("surelane_worker.leasing.leases")


class Leases:
    """The claims this worker holds."""

    def __init__(self, engine: Engine, lease: timedelta, metrics: Metrics) -> None:
        self._engine = engine
        self._lease = lease
        self._metrics = metrics
        self._pause = min(lease / 3, LONGEST_PAUSE).total_seconds()
        self._limit = min(LIMIT, self._pause)
        self._outage = Outage(log, "heartbeats")
        self.bytes = 0
        """How much text the claims held keep in memory: their events' bodies, and results to be settled."""
        self.held: dict[Claim, Work] = {}
        """Each claim and its work. A claim does not know its work itself: as a cycle both would outlive the settle."""

    def ends(self, claimed_at: float) -> float:
        """When a claim stands no longer that was made or renewed by a request of ``claimed_at``, at the earliest.

        Its lease runs out, or sooner: it is rescued from a worker whose heartbeats did not arrive for so long.
        """
        return claimed_at + min(self._lease, DEAD_FOR).total_seconds()

    async def keep(self) -> None:
        """Sends heartbeats until cancelled, and stops work as its lease runs out: also while a heartbeat hangs."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._renew())
            group.create_task(self._watch())

    async def hold(self, work: Stoppable) -> None:
        """Returns while a claim stands. To be asked before anything that is not to happen twice.

        A worker that stood still for a while has had no other moment to learn that its lease ran out.

        Raises:
            asyncio.CancelledError: it does not stand any more.
        """
        self.stop_lapsed()
        if work.stopped == LOST:
            await asyncio.sleep(0)  # the handler's task is cancelled here
            raise asyncio.CancelledError(LOST)  # a thread's or a child's is not

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
        """Renews every lease; answers whether the database answered for each."""
        claims = [claim for claim in self.held if not claim.settling]
        batches: list[Sequence[Claim]] = [
            claims[start : start + BATCH] for start in range(0, len(claims), BATCH)
        ]
        answered = True
        while batches:
            batch = batches.pop(0)
            try:
                await self._extend(batch)
            except SLOW as error:
                log.warning("heartbeats are slow", count=len(batch), error=type(error).__name__)
                answered = False
                if len(batch) > 1:
                    batches += parts_of(batch)
            except UNAVAILABLE as error:
                self._outage.goes_on(error)
                return False
            except RETRYABLE:
                answered = False
            except DatabaseError as error:
                log.error("heartbeats failed", error=type(error).__name__)  # noqa: TRY400 - its message may quote data
                answered = False
        self._outage.is_over()
        return answered

    async def _extend(self, claims: Sequence[Claim]) -> None:
        ends = self.ends(asyncio.get_running_loop().time())
        async with asyncio.timeout(self._limit):
            answers = await self._engine.extend_leases([claim.fence for claim in claims], self._lease)
        for claim, answer in zip(claims, answers, strict=True):
            if answer is Settled.DONE:
                claim.lease_ends = ends
            elif answer is Settled.STALE:
                self._lose(claim)

    def stop_lapsed(self) -> None:
        """Stops the work whose lease has run out: somebody else may do it by now."""
        now = asyncio.get_running_loop().time()
        for claim in [claim for claim in self.held if claim.lease_ends < now]:
            self._lose(claim)

    def _lose(self, claim: Claim) -> None:
        # A claim that is settled meanwhile answers stale to a heartbeat sent before: that is no loss.
        work = self.held.get(claim)
        if work is None or claim.settling or work.stopped == LOST:
            return
        self._metrics.lease_lost(claim.event.kind)
        log.warning(
            "lease lost", event_id=claim.event.key, kind=claim.event.kind, attempt=claim.event.attempts
        )
        work.stop(LOST)

    def add(self, work: Work) -> None:
        """Holds the claims of a piece of work."""
        for claim in work.claims:
            self.held[claim] = work
            self.bytes += claim.size

    def weigh(self, claim: Claim, size: int) -> None:
        """Adds to what a claim keeps in memory."""
        if claim in self.held:
            claim.size += size
            self.bytes += size

    def drop(self, claims: Iterable[Claim]) -> None:
        """Forgets claims that are settled or lost."""
        for claim in claims:
            if self.held.pop(claim, None) is not None:
                self.bytes -= claim.size
