"""One shard in virtual time: Slack's deliveries, ingest's batches, the primary, and workers that claim.

A heap of what happens next, and no SimPy: its processes read well, but took 14 µs for an event that waits twice, where
a heap took 1.6 µs, and a run has millions. The waits and pauses are the product's; :class:`Costs` are measured.

The primary does one thing at a time. Statements that real ones share between events are charged per event, so that a
full primary carries what was measured. Handlers fail never, and each takes as long as its post says.
"""

from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Any

from benchmarks.shards.queue import LONG, Event, Group, Queue
from benchmarks.shards.shape import Post, pause

BUDGET = 2.0
"""Seconds until ingest answers 503."""
BATCH, BUFFER = 500, 2000
"""How many events one insert stores at most, and how many may wait for the next insert."""
POLL, PEEK = 5.0, 0.25
"""Seconds between polls, and until a worker that goes to sleep looks once more."""
POSITIONS, RESERVE, MOST_INTERVALS, LONGEST = 2, 6, 8, 40.0
"""Workers in reserve take turns in polling."""
OVERDUE, ATTENTION, PASSED_ON, PASS_ON_PAUSE = 0.5, 300.0, 2.0, 1.0
PAUSE, DEPUTYS_PAUSE, HESITATION, LEFT, PATIENCE = 0.5, 0.05, 0.1, 0.05, 1000
"""Which workers answer notifications, and when, as in ``claiming/position.py``."""
LATE = 3.0
MOST = 600
"""Events per claim, at most."""
STANDS = 300.0
"""Seconds for which a claim outlives the last heartbeat."""


@dataclass(frozen=True)
class Costs:
    """What the primary does, in seconds. See docs/performance/shards.md."""

    insert: float = 0.0004
    """Per event: its share of an insert."""
    claim: float = 0.00028
    """Seconds that a claim or a poll costs, whether it finds an event or not."""
    event: float = 0.0004
    """Per event that is claimed and settled."""
    trip: float = 0.003
    """Of an insert's or a claim's way there and back, while the primary does other things."""
    notice: float = 0.00003
    """Per session that listens, for a notification."""


@dataclass(frozen=True)
class Outage:
    """The primary is away."""

    begins: float
    lasts: float

    @property
    def ends(self) -> float:
        """When it is back."""
        return self.begins + self.lasts


@dataclass(eq=False, slots=True)
class Worker:
    """A worker: 0 is the responder, 1 the deputy, the others are in reserve."""

    number: int
    free: int
    asleep: bool = True
    again: bool = False
    """It was woken while a claim was under way."""
    looking: bool = False
    """It will look once more."""
    attentive_until: float = -inf
    patience: int = PATIENCE
    """How many notifications it will hear without answering."""
    pauses_until: float = -inf
    postponed: bool = False
    """It will answer when its pause is over."""

    @property
    def has_position(self) -> bool:
        return self.number < POSITIONS

    def listens(self, now: float) -> bool:
        """Return whether it hears notifications."""
        return self.has_position or self.patience > 0 or self.attentive_until > now


@dataclass(eq=False, slots=True)
class Work:
    """A claimed group. Its events run one after another in one slot."""

    group: Group
    events: list[Event]
    nth: int = 0
    unsettled: list[Event] = field(default_factory=list)
    """What ended while the primary was away."""


@dataclass(eq=False)
class Figures:
    """What happened on a shard."""

    waits: dict[tuple[str, str], "array[float]"] = field(
        default_factory=lambda: defaultdict(lambda: array("d"))
    )
    """Seconds from when an event was stored and its thread was free, by the time of storing and by whose it is."""
    stored: int = 0
    lost: int = 0
    """Events that Slack gave up."""
    retried: int = 0
    """Events that Slack delivered by a retry."""
    latest: float = 0.0
    """Most seconds from a post until it was stored."""
    repeated: int = 0
    """Events that ran again, because their claims did not outlive the outage."""
    begun: Counter[int] = field(default_factory=Counter)
    late: Counter[int] = field(default_factory=Counter)
    """By the minute: events that began, and how many of these had waited for more than :data:`LATE` seconds."""
    answers: dict[bool, Counter[int]] = field(default_factory=lambda: {True: Counter(), False: Counter()})
    """Requests that were answered 200, and others, by the minute."""
    primary: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    slots: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds for which they were taken, by the minute in which that began."""
    claims: Counter[int] = field(default_factory=Counter)
    """Claims by the minute."""
    finished: float = 0.0
    """When the last event ended."""

    def recovered(self, since: float) -> float:
        """Return seconds until a minute begins in which at most one event in a hundred waited long."""
        minute = int(since // 60)
        while self.late[minute] > self.begun[minute] / 100:
            minute += 1
        return max(minute * 60 - since, 0.0)


class Shard:
    """An installation: a primary, ingest, and workers."""

    def __init__(
        self,
        workers: int,
        concurrency: int,
        *,
        costs: Costs = Costs(),
        outage: Outage | None = None,
        delayed: bool = False,
        fair: bool = True,
        named: Callable[[float, int], tuple[str, str]] = lambda _, __: ("", ""),
        seed: int = 1,
        pauses: Callable[..., float | None] = pause,
    ) -> None:
        """``named`` says under what to count the wait of an event, by the time of its storing and its workspace."""
        self.random = Random(seed)
        self.queue = Queue(self.random, fair=fair)
        self._concurrency = concurrency
        self.workers = [Worker(number, concurrency) for number in range(workers)]
        self.figures = Figures()
        self.now = 0.0
        self._costs, self._outage, self._delayed = costs, outage, delayed
        self._named, self._pauses = named, pauses
        self._next: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._count = 0
        self._free_at = 0.0
        self._down = self._flushing = False
        self._incoming: deque[tuple[Post, int, float]] = deque()
        self._unsettled: list[Work] = []
        self._passed_on_at = -inf
        self._sharing = False

    def run(self, posts: Iterable[Post], until: float = inf) -> Figures:
        """Run until all that was posted has ended or was given up, or until a moment."""
        if self._outage is not None:
            self._at(self._outage.begins, self._break)
            self._at(self._outage.ends, self._recover)
        for worker in self.workers:
            self._at(self.random.uniform(0, POLL), self._poll, worker)
        for post in posts:
            while self._next and self._next[0][0] <= post.at:
                self._step()
            self.now = post.at
            self._deliver((post, 0))
        while self._next and self._next[0][0] <= until and (until < inf or self._busy()):
            self._step()
        return self.figures

    def _busy(self) -> bool:
        """Whether more than polls are to come."""
        return len(self._next) > len(self.workers) or bool(self.queue.heads)

    def _at(self, moment: float, do: Callable[[Any], None], what: object = None) -> None:
        self._count += 1
        heappush(self._next, (moment, self._count, do, what))

    def _step(self) -> None:
        self.now, _, do, what = heappop(self._next)
        do(what)

    def _use(self, seconds: float) -> float:
        """Occupy the primary. Return when it is done."""
        self.figures.primary[int(self.now // 60)] += seconds
        self._free_at = max(self.now, self._free_at) + seconds
        return self._free_at

    # Slack and ingest

    def _deliver(self, delivery: tuple[Post, int]) -> None:
        if len(self._incoming) >= BUFFER:
            self._refuse(delivery)
        else:
            self._take(*delivery, self.now)
            self._flush()

    def _take(self, post: Post, retry: int, since: float) -> None:
        """Let an event wait for an insert, or for the 503 if the primary is not back by then."""
        if self._down and self._outage is not None and since + BUDGET < self._outage.ends:
            self._at(since + BUDGET, self._refuse, (post, retry))
        else:
            self._incoming.append((post, retry, since))

    def _refuse(self, delivery: tuple[Post, int]) -> None:
        post, retry = delivery
        self.figures.answers[False][int(self.now // 60)] += 1
        wait = self._pauses(retry, delayed=self._delayed)
        if wait is None:
            self.figures.lost += 1
        else:
            self._at(self.now + wait, self._deliver, (post, retry + 1))

    def _flush(self) -> None:
        if self._flushing or self._down:
            return
        batch: list[tuple[Post, int, float]] = []
        while self._incoming and len(batch) < BATCH:
            post, retry, since = self._incoming.popleft()
            if self.now - since > BUDGET:
                self._refuse((post, retry))
            else:
                batch.append((post, retry, since))
        if batch:
            self._flushing = True
            self._at(self._use(self._costs.insert * len(batch)) + self._costs.trip, self._flushed, batch)

    def _flushed(self, batch: list[tuple[Post, int, float]]) -> None:
        self._flushing = False
        if self._down:
            for taken in batch:
                self._take(*taken)
            return
        figures = self.figures
        figures.answers[True][int(self.now // 60)] += len(batch)
        figures.stored += len(batch)
        for post, retry, _ in batch:
            if retry:
                figures.retried += 1
                figures.latest = max(figures.latest, self.now - post.at)
            self.queue.add(Event(post, self.now), self.now)
        self._notify()
        self._flush()

    # Workers

    def _notify(self) -> None:
        """Wake the responder and those who answer beside it."""
        responder = self.workers[0]
        if 2 * responder.free < self._concurrency:
            self._pass_on()
        self._wake(responder)
        for worker in self._listeners():
            if worker.attentive_until > self.now:
                self._answer(worker)
            elif not worker.has_position:
                worker.patience -= 1
            elif not worker.postponed:
                worker.postponed = True
                self._at(self.now + HESITATION, self._answer_late, worker)

    def _pass_on(self) -> None:
        if self.now - self._passed_on_at >= PASS_ON_PAUSE:
            self._passed_on_at = self.now
            for worker in self._listeners():
                self._attend(worker, PASSED_ON)
                self._answer(worker)

    def _listeners(self) -> list[Worker]:
        """Notify all that listen. Return those beside the responder."""
        listeners = [worker for worker in self.workers[1:] if worker.listens(self.now)]
        self._use(self._costs.notice * len(listeners))
        return listeners

    def _attend(self, worker: Worker, seconds: float) -> None:
        worker.attentive_until = max(worker.attentive_until, self.now + seconds)
        worker.patience = PATIENCE

    def _answer(self, worker: Worker) -> None:
        """Claim now, or after the pause since its last answer."""
        if not worker.free or not worker.asleep:
            return
        if self.now >= worker.pauses_until:
            longest = DEPUTYS_PAUSE if worker.has_position else PAUSE
            worker.pauses_until = self.now + self.random.uniform(0, longest)
            self._wake(worker)
        elif not worker.postponed:
            worker.postponed = True
            self._at(worker.pauses_until, self._answer_late, worker)

    def _answer_late(self, worker: Worker) -> None:
        worker.postponed = False
        self._answer(worker)

    def _wake(self, worker: Worker) -> None:
        """Let a sleeping worker claim. That it finds nothing is charged, not played."""
        if not worker.asleep:
            worker.again = True
        elif self.queue.heads:
            self._claim(worker)
        else:
            self._charge()

    def _charge(self) -> float:
        self.figures.claims[int(self.now // 60)] += 1
        return self._use(self._costs.claim)

    def _claim(self, worker: Worker) -> None:
        worker.again = worker.asleep = False
        self._at(self._charge() + self._costs.trip, self._claimed, worker)

    def _claimed(self, worker: Worker) -> None:
        if self._down:
            worker.asleep = True
            return
        limit = min(worker.free, MOST)
        works = self.queue.claim(limit)
        if works:
            oldest = self.now - works[0][0].vt
            self._use(self._costs.event * sum(len(events) for _, events in works))
            for group, events in works:
                worker.free -= 1
                self._begin(worker, Work(group, events))
            if worker.number and oldest > (LEFT if worker.has_position else OVERDUE):
                self._attend(worker, ATTENTION if oldest > OVERDUE else PASSED_ON)
            if not worker.number and not worker.free:
                self._pass_on()
            if oldest > LONG and not self._sharing:
                self._sharing = True
                self._at(self.now, self._share)
        if not worker.free:
            return
        if works and not worker.looking:
            worker.looking = True
            self._at(self.now + PEEK, self._look, worker)
        worker.asleep = True
        if works or worker.again:
            self._wake(worker)

    def _begin(self, worker: Worker, work: Work) -> None:
        event = work.events[work.nth]
        if not event.tried:
            event.tried = True
            waited = self.now - max(event.stored, work.group.free_since)
            self.figures.waits[self._named(event.stored, event.post.workspace)].append(waited)
            self.figures.begun[int(self.now // 60)] += 1
            self.figures.late[int(self.now // 60)] += waited > LATE
        work.group.free_since = self.now + event.post.seconds
        self.figures.slots[int(self.now // 60)] += event.post.seconds
        self._at(work.group.free_since, self._ended, (worker, work))

    def _ended(self, given: tuple[Worker, Work]) -> None:
        worker, work = given
        self.figures.finished = self.now
        if self._down:
            work.unsettled.append(work.events[work.nth])
        work.nth += 1
        if work.nth < len(work.events):
            self._begin(worker, work)
            return
        was_full = not worker.free
        worker.free += 1
        if self._down:
            self._unsettled.append(work)
        elif self.queue.settle(work.group, self.now):
            self._notify()
        if was_full and not worker.asleep:
            worker.asleep = True
            self._wake(worker)

    def _poll(self, worker: Worker) -> None:
        turns = min(max((len(self.workers) - POSITIONS) / RESERVE, 1), MOST_INTERVALS)
        period = POLL if worker.has_position else max(POLL, min(POLL * turns, LONGEST))
        self._at(self.now + period * self.random.uniform(1, 1.5), self._poll, worker)
        if not self._down:
            self._use(self._costs.claim)
            self._look(worker)

    def _look(self, worker: Worker) -> None:
        worker.looking = False
        if self.queue.heads and worker.asleep and not self._down:
            self._wake(worker)

    def _share(self, _: object) -> None:
        self._sharing = not self._down and self.queue.share(self.now)
        if self._sharing:
            self._at(self.now + 1, self._share)
            self._notify()

    # The outage

    def _break(self, _: object) -> None:
        self._down = True
        waiting, self._incoming = self._incoming, deque()
        for taken in waiting:
            self._take(*taken)

    def _recover(self, _: object) -> None:
        assert self._outage is not None
        self._down = False
        self._free_at = self.now
        for work in self._unsettled:
            if self._outage.lasts > STANDS:
                self.figures.repeated += len(work.unsettled)
                for event in work.unsettled:
                    self.queue.add(event, self.now)
            self.queue.settle(work.group, self.now)
        self._unsettled = []
        self._flush()
        for worker in self.workers:  # each tries again after a pause of its own
            self._at(self.now + self.random.uniform(0, POLL), self._look, worker)
