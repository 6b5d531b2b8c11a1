"""Settles: tells the database how claims ended, everything that waits in one round trip of each sort.

Nothing is forgotten before the database has answered: a settle is sent again while the database is away or the event
is locked, until its lease has run out. What is not settled counts against what may be claimed, which bounds memory.

No settle waits for another: one that is busy or slow is sent again on its own schedule, beside the others.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from surelane_service.engine import Completion, Engine, Settled
from surelane_service.logs import get_logger
from surelane_service.pool import RETRYABLE, UNAVAILABLE, DatabaseError
from surelane_worker.leasing.leases import Leases
from surelane_worker.observing.metrics import Metrics
from surelane_worker.observing.outage import Outage
from surelane_worker.observing.tracing import Tracing, now
from surelane_worker.running.work import Claim
from surelane_worker.settling.parts import SLOW, parts_of
from surelane_worker.settling.settles import (
    BATCHED,
    Settle,
    Settlement,
    alike,
    send,
    without_what_was_refused,
)

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
MANY = 32
GATHERING = 0.004
"""Under load a batch is gathered for this many seconds: a round trip costs much the same for one and for many."""
PATIENCE = 0.25
"""Seconds after which the next batch is sent though the one before is not answered."""
BATCH_LIMIT = 5.0
"""Seconds that a batch may take. Then it is cancelled and sent in parts, to isolate the settle that is slow."""
BESIDE = 2
"""Round trips at once, each: of fresh batches; and of rare sorts and parts of slow batches."""
CONNECTIONS = 2 * BESIDE

log = get_logger("surelane_worker.settling.settler")


class Settler:
    """Collects settles and sends them in batches."""

    def __init__(
        self,
        engine: Engine,
        leases: Leases,
        metrics: Metrics,
        tracing: Tracing | None,
        *,
        max_attempts: int,
        on_settled: Callable[[], None],
    ) -> None:
        """``on_settled`` is called when claims are settled or forgotten, so that more may be claimed."""
        self._engine = engine
        self._leases = leases
        self._metrics = metrics
        self._tracing = tracing
        self._outage = Outage(log, "settles")
        self._max_attempts = max_attempts
        self._on_settled = on_settled
        self._waiting: list[Settlement] = []
        self._unsettled = 0
        self._pause = FIRST_PAUSE
        self._tries: dict[Claim, int] = {}
        """How often a settle was answered busy, or took too long."""
        self._resent: set[Claim] = set()
        self._fresh: set[asyncio.Task[None]] = set()
        self._others: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(BESIDE)
        self._some = asyncio.Event()
        self._hurried = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def put(self, claim: Claim, settle: Settle) -> None:
        """Hands over how a claim ended."""
        claim.settling = True
        if self._tracing is not None:
            claim.settling_since = now()
        if type(settle) is Completion and settle.result is not None:
            self._leases.weigh(claim, len(settle.result))
        self._waiting.append((claim, settle))
        self._unsettled += 1
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
        many = False
        try:
            while True:
                await self._some.wait()
                if self._outage.on:
                    await asyncio.sleep(self._pause)
                elif many:
                    await self._gather()
                self._hurried.clear()
                batch, self._waiting = self._waiting, []
                many = len(batch) >= MANY
                self._some.clear()
                for part in alike(batch):
                    await self._begin(part)
        finally:
            for task in self._fresh | self._others:
                task.cancel()

    async def _gather(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(GATHERING):
                await self._hurried.wait()

    async def _begin(self, batch: Sequence[Settlement]) -> None:
        """Sends a batch; returns when it is answered, or when others need not wait for it."""
        if len(batch) == 1 and not isinstance(batch[0][1], BATCHED):
            self._beside(batch)
            return
        task = asyncio.create_task(self._trip(batch))
        self._fresh.add(task)
        task.add_done_callback(self._fresh.discard)
        await asyncio.wait((task,), timeout=PATIENCE)
        while len(self._fresh) >= BESIDE:
            await asyncio.wait(self._fresh, return_when=asyncio.FIRST_COMPLETED)

    def _beside(self, batch: Sequence[Settlement]) -> None:
        """Sends a batch beside the others: one of a rare sort, or a part of one that was slow."""

        async def trip() -> None:
            async with self._room:
                await self._trip(batch)

        task = asyncio.create_task(trip())
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    async def _trip(self, batch: Sequence[Settlement]) -> None:
        """Sends a batch and deals with every answer. Raises nothing: one that is refused holds back no other."""
        try:
            answers = await self._call(batch)
        except SLOW as error:
            self._resent.update(claim for claim, _ in batch)
            if len(batch) > 1:
                log.warning("settles are slow", count=len(batch), error=type(error).__name__)
                for part in parts_of(batch):
                    self._beside(part)
            else:
                self._busy(batch)
        except (*UNAVAILABLE, *RETRYABLE) as error:
            self._outage.goes_on(error)
            self._resent.update(claim for claim, _ in batch)
            self._later(batch, self._pause)
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
        except Exception as error:  # noqa: BLE001 - nothing may end the settler
            self._refused(batch, error)
        else:
            if self._outage.on:
                self._outage.is_over()
                self._pause = FIRST_PAUSE
            self._sort(batch, answers)

    def _refused(self, batch: Sequence[Settlement], error: Exception) -> None:
        """One of a batch is refused: finds out which, so that it does not hold back the others."""
        if len(batch) > 1:
            for one in batch:
                self._beside([one])
            return
        claim, settle = batch[0]
        unexpected = None if isinstance(error, DatabaseError) else error
        log.error(
            "settle refused",
            event_id=claim.event.key,
            kind=claim.event.kind,
            error=type(error).__name__,
            exc_info=unexpected,
        )
        instead = without_what_was_refused(claim, settle, error)
        if instead is not None:
            self._again([(claim, instead)])
        else:
            self._end([claim])

    def _busy(self, batch: Sequence[Settlement]) -> None:
        """Sends settles of locked events again, each after a pause that doubles."""
        for claim, settle in batch:
            tries = self._tries[claim] = self._tries.get(claim, -1) + 1
            self._later([(claim, settle)], min(FIRST_PAUSE * 2 ** min(tries, 10), LONGEST_PAUSE))

    def _later(self, batch: Sequence[Settlement], pause: float) -> None:
        asyncio.get_running_loop().call_later(pause, self._again, batch)

    def _again(self, batch: Sequence[Settlement]) -> None:
        now = asyncio.get_running_loop().time()
        for claim, settle in batch:
            if claim.lease_ends < now:
                log.warning(
                    "settle given up: its lease ran out", event_id=claim.event.key, kind=claim.event.kind
                )
                self._end([claim])
            else:
                self._waiting.append((claim, settle))
        if self._waiting:
            self._some.set()

    def _sort(self, batch: Sequence[Settlement], answers: Sequence[Settled]) -> None:
        busy: list[Settlement] = []
        settled: list[Claim] = []
        for one, answer in zip(batch, answers, strict=True):
            if answer is Settled.BUSY:
                busy.append(one)
                continue
            settled.append(one[0])
            if answer is Settled.STALE:
                self._stale(one[0])
        if self._tracing is not None:
            self._trace(self._tracing, batch, answers)
        self._end(settled)
        self._busy(busy)

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

    def _end(self, claims: Sequence[Claim]) -> None:
        self._unsettled -= len(claims)
        if self._resent or self._tries:
            self._resent.difference_update(claims)
            for claim in claims:
                self._tries.pop(claim, None)
        self.forget(claims)
        if not self._unsettled:
            self._idle.set()

    def forget(self, claims: Sequence[Claim]) -> None:
        """Lets go of claims that are settled or lost."""
        self._leases.drop(claims)
        self._on_settled()

    async def _call(self, batch: Sequence[Settlement]) -> list[Settled]:
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(BATCH_LIMIT if len(batch) > 1 else None):
                return await send(self._engine, batch, self._max_attempts)
        finally:
            self._metrics.operation.add("settle", asyncio.get_running_loop().time() - began)
