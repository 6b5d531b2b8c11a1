"""Settles: tells the database how claims ended, everything that waits in one round trip of each sort.

Nothing is forgotten before the database has answered: a settle is sent again while the database is away or the event
is locked, until its lease has run out. What is not settled counts against what may be claimed, which bounds memory.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from surelane.events import Settled
from surelane.logs import get_logger
from surelane.pool import RETRYABLE, UNAVAILABLE, DatabaseError
from surelane.queue import Queue
from surelane_worker.claims import Claim
from surelane_worker.lease import Leases
from surelane_worker.metrics import Metrics
from surelane_worker.outage import Outage
from surelane_worker.settles import Settle, Settlement, send, without_what_was_refused
from surelane_worker.tracing import Tracing, now

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
MANY = 32
GATHERING = 0.004
"""Under load a batch is gathered for this many seconds: a round trip costs much the same for one and for many."""

log = get_logger("surelane_worker.settle")


class Settler:
    """Collects settles and sends them in batches."""

    def __init__(
        self,
        queue: Queue,
        leases: Leases,
        metrics: Metrics,
        tracing: Tracing | None,
        *,
        max_attempts: int,
        on_settled: Callable[[], None],
    ) -> None:
        """``on_settled`` is called when claims are settled or forgotten, so that more may be claimed."""
        self._queue = queue
        self._leases = leases
        self._metrics = metrics
        self._tracing = tracing
        self._outage = Outage(log, "settles")
        self._max_attempts = max_attempts
        self._on_settled = on_settled
        self._waiting: list[Settlement] = []
        self._resent: set[Claim] = set()
        self._some = asyncio.Event()
        self._hurried = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def put(self, claim: Claim, settle: Settle) -> None:
        """Hands over how a claim ended."""
        claim.settling = True
        if self._tracing is not None:
            claim.settling_since = now()
        self._waiting.append((claim, settle))
        self._some.set()
        self._idle.clear()

    def hurry(self) -> None:
        """Does not gather more before it sends what was handed over: somebody waits for it."""
        self._hurried.set()

    async def flushed(self) -> None:
        """Waits until everything handed over is settled or its lease has run out."""
        await self._idle.wait()

    async def run(self) -> None:
        """Sends settles until cancelled."""
        pause, many = FIRST_PAUSE, False
        while True:
            await self._some.wait()
            if many:
                await self._gather()
            self._hurried.clear()
            batch, self._waiting = self._waiting, []
            many = len(batch) >= MANY
            self._some.clear()
            again = await self._send(batch)
            if again:
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                self._return(again)
            else:
                pause = FIRST_PAUSE
            if not self._waiting:
                self._idle.set()

    async def _gather(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(GATHERING):
                await self._hurried.wait()

    def _return(self, batch: Sequence[Settlement]) -> None:
        now = asyncio.get_running_loop().time()
        for claim, settle in batch:
            if claim.lease_ends < now:
                log.warning(
                    "settle given up: its lease ran out", event_id=claim.event.key, kind=claim.event.kind
                )
                self.forget([claim])
            else:
                self._waiting.append((claim, settle))
        if self._waiting:
            self._some.set()

    async def _send(self, batch: Sequence[Settlement]) -> list[Settlement]:
        """Sends a batch; returns what must be sent again."""
        sorts: dict[type[Settle], list[Settlement]] = {}
        for one in batch:
            sorts.setdefault(type(one[1]), []).append(one)
        return [again for alike in sorts.values() for again in await self._send_alike(alike)]

    async def _send_alike(self, batch: Sequence[Settlement]) -> Sequence[Settlement]:
        try:
            answers = await self._call(batch)
        except (*UNAVAILABLE, *RETRYABLE) as error:
            self._outage.goes_on(error)
            self._resent.update(claim for claim, _ in batch)
            return batch
        except DatabaseError as error:
            return await self._send_singly(batch, error)
        self._outage.is_over()
        return self._sort(batch, answers)

    async def _send_singly(self, batch: Sequence[Settlement], error: Exception) -> Sequence[Settlement]:
        """One of a batch is refused: finds out which, so that it does not hold back the others."""
        if len(batch) > 1:
            return [again for one in batch for again in await self._send_alike([one])]
        claim, settle = batch[0]
        log.error(
            "settle refused", event_id=claim.event.key, kind=claim.event.kind, error=type(error).__name__
        )
        instead = without_what_was_refused(settle, error)
        if instead is not None:
            return [(claim, instead)]
        self.forget([claim])
        return []

    def _sort(self, batch: Sequence[Settlement], answers: Sequence[Settled]) -> list[Settlement]:
        again: list[Settlement] = []
        settled: list[Claim] = []
        for one, answer in zip(batch, answers, strict=True):
            if answer is Settled.BUSY:
                again.append(one)
                continue
            settled.append(one[0])
            if answer is Settled.STALE:
                self._stale(one[0])
        if self._tracing is not None:
            self._trace(self._tracing, batch, answers)
        self.forget(settled)
        return again

    @staticmethod
    def _trace(tracing: Tracing, batch: Sequence[Settlement], answers: Sequence[Settled]) -> None:
        sort = type(batch[0][1]).__name__.lower()
        for answer in (Settled.DONE, Settled.STALE):
            claims = [claim for (claim, _), given in zip(batch, answers, strict=True) if given is answer]
            if claims:
                since = min(claim.settling_since for claim in claims)
                tracing.settled([(claim.event, claim.span) for claim in claims], since, sort, answer)

    def _stale(self, claim: Claim) -> None:
        if claim in self._resent:  # not counted: the try whose answer was lost may have settled it
            log.info("stale settle, sent twice", event_id=claim.event.key, kind=claim.event.kind)
            return
        self._metrics.stale(claim.event.kind)
        log.warning(
            "stale settle", event_id=claim.event.key, kind=claim.event.kind, attempt=claim.event.attempts
        )

    def forget(self, claims: Sequence[Claim]) -> None:
        """Lets go of claims that are settled or lost."""
        self._leases.drop(claims)
        if self._resent:
            self._resent.difference_update(claims)
        self._on_settled()

    async def _call(self, batch: Sequence[Settlement]) -> list[Settled]:
        began = asyncio.get_running_loop().time()
        try:
            return await send(self._queue, batch, self._max_attempts)
        finally:
            self._metrics.operation.add("settle", asyncio.get_running_loop().time() - began)
