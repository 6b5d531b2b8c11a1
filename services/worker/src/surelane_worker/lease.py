"""Heartbeats: renews the leases of everything held, in batches, and stops work whose lease is lost."""

import asyncio
from collections.abc import Iterable
from datetime import timedelta

from surelane.events import DEAD_FOR, Settled
from surelane.logs import get_logger
from surelane.pool import UNAVAILABLE
from surelane.queue import Queue
from surelane_worker.claims import LOST, Claim, Work
from surelane_worker.context import Stoppable
from surelane_worker.metrics import Metrics
from surelane_worker.outage import Outage

LONGEST_PAUSE = DEAD_FOR / 3
"""A third of :data:`DEAD_FOR`: two lost heartbeats must not make a living worker's claims look dead."""
BATCH = 500
WATCH = 0.5
"""Seconds between two looks at which leases have run out."""

log = get_logger("surelane_worker.lease")


class Leases:
    """The claims this worker holds."""

    def __init__(self, queue: Queue, lease: timedelta, metrics: Metrics) -> None:
        self._queue = queue
        self._lease = lease
        self._metrics = metrics
        self._pause = min(lease / 3, LONGEST_PAUSE).total_seconds()
        self._outage = Outage(log, "heartbeats")
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
        claims = [claim for claim in self.held if not claim.settling]
        for start in range(0, len(claims), BATCH):
            try:
                await self._extend(claims[start : start + BATCH])
            except UNAVAILABLE as error:
                self._outage.goes_on(error)
                return False
        self._outage.is_over()
        return True

    async def _extend(self, claims: list[Claim]) -> None:
        ends = self.ends(asyncio.get_running_loop().time())
        answers = await self._queue.extend_leases([claim.fence for claim in claims], self._lease)
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
        self.held.update(dict.fromkeys(work.claims, work))

    def drop(self, claims: Iterable[Claim]) -> None:
        """Forgets claims that are settled or lost."""
        for claim in claims:
            self.held.pop(claim, None)
