"""Report outcomes to the database: all that are waiting go in one round trip.

The settler forgets no outcome before the database has answered. It sends an outcome again while the database is away
or the event is locked, until the lease has run out. No outcome waits for another: a busy or slow one is sent again on
its own schedule, beside the others.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

from surelane.codec import PLAIN, Codec
from surelane.errors import DatabaseRefused, DatabaseUnavailable, TransientConflict, described, refuses_call
from surelane.json_text import mended
from surelane_service.engine import Engine, Settled
from surelane_service.lifecycle import sleep_unless
from surelane_service.logs import get_logger
from surelane_worker.handling.outcomes import (
    COMPLETE,
    OUTCOMES,
    Fail,
    FanOut,
    Outcome,
    Release,
    Together,
    sealed_argument,
)
from surelane_worker.handling.records import message_of
from surelane_worker.leasing import Claim, Leases, is_slow, parts_of
from surelane_worker.observing.readiness import Outage
from surelane_worker.observing.tracing import Observer, Tracing

MANY = 32
"""A batch of this size means load: the next one is gathered for a moment."""
BESIDE = 2
"""Round trips at once, each: of fresh batches, and of parts of slow batches."""
ALONE = 3
"""Busy answers after which an outcome is sent alone. In a batch, a refused outcome answers busy, too."""
NOBODY = 0, 0, COMPLETE.name, None
"""An outcome of no event. A server that takes it takes outcomes."""

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
"""Seconds before a busy outcome is sent again. The pause doubles each time."""
GATHERING = 0.004
"""Seconds, under load, for more outcomes: a round trip costs about the same for one and for many."""
PATIENCE = 0.25
"""Seconds for the answer to a batch before the next one is sent beside it."""
LIMIT = 5.0
"""Seconds for the answer, before the connection is cut, as it may be half-open. A batch is then sent in parts.

A single outcome is sent again with twice the time, three times at most, as the server may be slow.
"""

log = get_logger("surelane_worker.settling")


@dataclass(eq=False)
class Settler:
    """Collect outcomes and report them in batches."""

    engine: Engine
    leases: Leases
    observer: Observer
    codec: Codec = PLAIN

    def __post_init__(self) -> None:
        self._outage = Outage(log, "settles")
        self._waiting: list[Claim] = []
        self._unsettled = 0
        self._pause = FIRST_PAUSE
        self._tries: dict[Claim, int] = {}
        """How often an outcome was answered busy, or took too long."""
        self._resent: set[Claim] = set()
        self._replaced: set[Claim] = set()
        """Claims whose first outcome the database refused."""
        self._jobs: dict[Claim, list[str]] = {}
        """The kinds of the jobs that a fan-out stores, to be counted once it has."""
        self._fresh: set[asyncio.Task[None]] = set()
        self._others: set[asyncio.Task[None]] = set()
        self._connections = asyncio.Semaphore(BESIDE)
        self._some = asyncio.Event()
        self._hurried = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def put(
        self, claim: Claim, outcome: Outcome, argument: str | None = None, followers: Sequence[Claim] = ()
    ) -> None:
        """Take over a claim's outcome, with its argument as JSON text. Its ``followers`` end with it."""
        claim.outcome = outcome.name
        claim.followers = followers
        for follower in followers:
            follower.outcome = Together.name
        if claim.span is not None:
            claim.settling_since = time.time_ns()
        if argument is not None:
            claim.argument = argument
            self.leases.weigh(claim, len(argument))
            if isinstance(outcome, FanOut):
                self._jobs[claim] = [job.kind for job in (*outcome.children, outcome.then)]
        if not self._unsettled:
            self._idle.clear()
        self._unsettled += 1
        if not self._waiting:
            self._some.set()
        self._waiting.append(claim)

    def hurry(self) -> None:
        """Send what is waiting without gathering more: the rest of a group waits for it."""
        self._hurried.set()

    async def flushed(self) -> None:
        """Wait until every outcome is settled or its lease has run out."""
        await self._idle.wait()

    async def run(self) -> None:
        """Report outcomes until cancelled."""
        many = False
        try:
            while True:
                await self._some.wait()
                if self._outage.on:
                    await asyncio.sleep(self._pause)
                elif many:
                    await sleep_unless(self._hurried, GATHERING)
                self._hurried.clear()
                batch, self._waiting = self._waiting, []
                many = len(batch) >= MANY
                self._some.clear()
                for part in _parted(batch):
                    await self._begin(part)
        finally:
            for task in self._fresh | self._others:
                task.cancel()

    async def _begin(self, batch: Sequence[Claim]) -> None:
        """Send a batch. Return when it is answered, or after a moment, so that others need not wait for it."""
        task = asyncio.create_task(self._trip(batch))
        self._fresh.add(task)
        task.add_done_callback(self._fresh.discard)
        await asyncio.wait((task,), timeout=PATIENCE)
        while len(self._fresh) >= BESIDE:
            await asyncio.wait(self._fresh, return_when=asyncio.FIRST_COMPLETED)

    def _beside(self, batch: Sequence[Claim]) -> None:
        """Send a part of a slow or refused batch beside the fresh ones."""

        async def trip() -> None:
            async with self._connections:
                await self._trip(batch)

        task = asyncio.create_task(trip())
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    async def _trip(self, batch: Sequence[Claim]) -> None:
        """Send a batch and act on every answer."""
        try:
            answers = await self._call(batch)
        except Exception as error:  # noqa: BLE001 - nothing may end the settler
            if is_slow(error):
                self._slow(batch, error)
            elif isinstance(error, DatabaseUnavailable | TransientConflict):
                self._away(batch, error)
            elif len(batch) > 1:
                self._resent.update(batch)
                for claim in batch:
                    self._beside([claim])
            elif await self._at_fault(batch[0], error):
                self._refused(batch[0], error)
            else:
                self._away(batch, error)
        else:
            if self._outage.on:
                self._outage.is_over()
                self._pause = FIRST_PAUSE
            self._sort(batch, answers)

    def _slow(self, batch: Sequence[Claim], error: Exception) -> None:
        self._resent.update(batch)
        if len(batch) == 1:
            self._busy(batch)
            return
        log.warning("settles are slow", count=len(batch), **described(error))
        for part in parts_of(batch):
            self._beside(part)

    def _away(self, batch: Sequence[Claim], error: Exception) -> None:
        """Send a batch again after a pause that doubles, up to a second."""
        self._outage.goes_on(error)
        self._resent.update(batch)
        asyncio.get_running_loop().call_later(self._pause, self._again, batch)
        self._pause = min(self._pause * 2, LONGEST_PAUSE)

    async def _at_fault(self, claim: Claim, error: Exception) -> bool:
        """Return whether an outcome that was refused alone is at fault, and not the server.

        Its argument is, if the server reads another one; or the whole outcome, if the server takes another one. Where
        a constraint refuses a run, one of its followers may be at fault.
        """
        if not isinstance(error, DatabaseRefused):
            return True  # it was never sent
        if claim.followers and (error.report.sqlstate or "").startswith("23"):
            return True
        if not refuses_call(error):
            return False
        if claim.argument is not None and await self.engine.calls.refuses_alone(claim.argument):
            return True
        if claim.outcome == COMPLETE.name and not claim.followers:
            # A result has nothing else that could be refused, unless no function had begun yet.
            return claim.argument is None and error.report.about is None
        try:
            await self.engine.settle([NOBODY], LIMIT)
        except (DatabaseRefused, DatabaseUnavailable, TimeoutError):
            return False
        return True

    def _refused(self, claim: Claim, error: Exception) -> None:
        """Replace an outcome that is at fault by another one that can be recorded."""
        shown = None if isinstance(error, DatabaseRefused) else error
        log.error("settle refused", **claim.named, **described(error), exc_info=shown)
        batch = [claim]
        if claim.followers:
            self._part(claim)  # one of them may be what was refused
            self._again(batch)
            return
        if claim.argument is None or claim in self._replaced:
            self._end(batch)
            return
        self._replaced.add(claim)
        self._jobs.pop(claim, None)
        if claim.outcome == COMPLETE.name:
            claim.argument = None  # the handler finished, although its result cannot be kept
        else:
            reason = "continuation_refused" if claim.outcome == FanOut.name else "outcome_refused"
            record = {"type": type(error).__name__, "message": message_of(error)}
            claim.outcome = Fail.name
            claim.argument = mended(json.dumps({"error": record, "final": True, "reason": reason}))
        self._again(batch)

    def _busy(self, batch: Sequence[Claim]) -> None:
        """Send the outcomes of locked events again, each after a pause that doubles."""
        for claim in batch:
            tries = self._tries[claim] = self._tries.get(claim, -1) + 1
            pause = min(FIRST_PAUSE * 2 ** min(tries, 10), LONGEST_PAUSE)
            asyncio.get_running_loop().call_later(pause, self._again, [claim])

    def _again(self, batch: Sequence[Claim]) -> None:
        now = asyncio.get_running_loop().time()
        for claim in batch:
            if claim.lease_ends < now:
                log.warning("settle given up: its lease ran out", **claim.named)
                self._end([claim])
            elif self._tries.get(claim, 0) >= ALONE:
                self._beside([claim])
            else:
                self._waiting.append(claim)
        if self._waiting:
            self._some.set()

    def _sort(self, batch: Sequence[Claim], answers: Sequence[Settled]) -> None:
        busy: list[Claim] = []
        settled: list[Claim] = []
        for claim, answer in zip(batch, answers, strict=True):
            if answer is Settled.BUSY:
                busy.append(claim)
                continue
            settled.append(claim)
            if answer is Settled.STALE:
                if (
                    claim in self._resent
                ):  # not counted: an earlier try, whose answer was lost, may have settled it
                    log.info("stale settle, sent twice", **claim.named)
                else:
                    self.observer.metrics.stale[claim.event.kind] += 1
                    log.warning("stale settle", **claim.named, attempt=claim.event.attempts)
                self._part(claim)
            elif claim in self._jobs:
                self.observer.metrics.sent(self._jobs[claim])
        if self.observer.tracing is not None:
            self._trace(self.observer.tracing, batch, answers)
        self._end(settled)
        self._busy(busy)

    @staticmethod
    def _trace(tracing: Tracing, batch: Sequence[Claim], answers: Sequence[Settled]) -> None:
        settled: dict[tuple[str, Settled], list[Claim]] = {}
        for claim, answer in zip(batch, answers, strict=True):
            if claim.span is not None and answer is not Settled.BUSY and claim.outcome is not None:
                settled.setdefault((claim.outcome, answer), []).append(claim)
        for (outcome, answer), claims in settled.items():
            since = min(claim.settling_since for claim in claims)
            ended = (each for claim in claims for each in (claim, *claim.followers))
            attempts = [(each.event, each.span) for each in ended if each.span is not None]
            tracing.settled(attempts, since, outcome, answer)

    def _part(self, claim: Claim) -> None:
        """Release the followers of a claim: they do not end with it."""
        followers, claim.followers = claim.followers, ()
        if claim in self._resent:
            self._resent.update(followers)
        for follower in followers:
            self.put(follower, Release())

    def _end(self, claims: Sequence[Claim]) -> None:
        self._unsettled -= len(claims)
        if self._resent or self._tries or self._jobs or self._replaced:
            self._resent.difference_update(claims)
            self._replaced.difference_update(claims)
            for claim in claims:
                self._tries.pop(claim, None)
                self._jobs.pop(claim, None)
        self.leases.drop([each for claim in claims for each in (claim, *claim.followers)])
        if not self._unsettled:
            self._idle.set()

    async def _call(self, batch: Sequence[Claim]) -> list[Settled]:
        began = asyncio.get_running_loop().time()
        doubled = min(self._tries.get(batch[0], -1) + 1, 3) if len(batch) == 1 else 0
        try:
            items = [_item(claim, await self._stored(claim)) for claim in batch]
            return await self.engine.settle(items, LIMIT * 2**doubled)
        finally:
            self.observer.metrics.operation.add("settle", asyncio.get_running_loop().time() - began)

    async def _stored(self, claim: Claim) -> str | None:
        if claim.argument is None or not self.codec.on:
            return claim.argument
        return await sealed_argument(
            self.codec, claim.event.id, claim.outcome or COMPLETE.name, claim.argument
        )


def _item(claim: Claim, argument: str | None) -> tuple[int, int, str, str | None]:
    settled = OUTCOMES[claim.outcome or COMPLETE.name].settled
    if claim.followers:
        followers = [(each.event.id, each.event.claim) for each in claim.followers]
        settled, argument = Together.settled, Together.given(settled, argument, followers)
    return claim.event.id, claim.event.claim, settled, argument


def _parted(batch: Sequence[Claim]) -> list[list[Claim]]:
    """Split a batch into plain completions, which the database settles in one pass, and the others."""
    completions = [claim for claim in batch if claim.outcome == COMPLETE.name and not claim.followers]
    others = [claim for claim in batch if claim.outcome != COMPLETE.name or claim.followers]
    return [part for part in (completions, others) if part]
