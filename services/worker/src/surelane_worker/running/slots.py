"""Slots: which work runs, which waits for a slot, and how many more events may be claimed."""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from surelane.events import Event
from surelane_service.engine import band_of
from surelane_service.logs import get_logger
from surelane_worker.handling.answers import AnswerSender
from surelane_worker.handling.handler import Handler, fresh_variables, left_values
from surelane_worker.handling.threads import DRAINED
from surelane_worker.leasing import Capacity, Leases, Work, works_of
from surelane_worker.running.runner import Runner
from surelane_worker.worker_settings import WorkerSettings

MOST = 600
"""Events per claim, at most."""
MOST_WAITING = 4 * MOST
"""Events that wait for a slot, at most: slots stay busy while the next events are claimed."""
MOST_UNSETTLED = 6000
"""Events held at once, at most: waiting, running and being settled."""
HORIZON = 0.05
"""Seconds within which work claimed ahead should start, judged by how long work takes now."""
FRESH = 0.01
"""Seconds for which slots that were freed wait for others, to be filled in one claim."""
PATIENCE = 1.0
"""Seconds that work waits for a slot before it is released: another worker may have a free one."""
OVERTAKING = 2
"""Claims that a notification allows while no slot is free: two, because one claim in eight ignores priority."""
TURN = 0.0002
"""Seconds in which a slot goes from one work to the next without a new task. Then the others come first."""
AGED = 10 * HORIZON
"""Seconds that claimed work of a low priority waits for a slot, before it comes next."""
log = get_logger("surelane_worker.running.slots")
RANKS = {1: 0, 2: 2, 3: 3}
"""The order of bands; the others hold priority 1."""


class Waiting:
    """Work that waits for a slot, by the band of lanes that it was claimed from. No band is empty.

    Priority 0 comes first, then 1, 2 and 3; of priority 1 the band with least work, which is not a crowd's. Work that
    waited for :data:`AGED` seconds comes before all other.
    """

    def __init__(self) -> None:
        self._bands: dict[int, deque[Work]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._bands.values()))

    def __bool__(self) -> bool:
        return bool(self._bands)  # asked twice per event

    def add(self, work: Work, *, first: bool = False) -> None:
        """Add work behind, or ``first`` before, what waits of its band."""
        band = band_of(work.claims[0].event.lane or 0)
        queue = self._bands.get(band)
        if queue is None:
            queue = self._bands[band] = deque()
        queue.appendleft(work) if first else queue.append(work)

    def take(self, now: float) -> Work:
        """Take out the work that comes next."""
        band = next(iter(self._bands))
        if len(self._bands) > 1:
            band = min(self._bands, key=lambda each: self._bands[each][0].since)
            if now - self._bands[band][0].since < AGED:
                band = min(self._bands, key=lambda each: (RANKS.get(each, 1), len(self._bands[each])))
        queue = self._bands[band]
        work = queue.popleft()
        if not queue:
            del self._bands[band]
        return work

    def take_since(self, since: float) -> list[Work]:
        """Take out the work that has waited since before ``since``."""
        waiting = [work for queue in self._bands.values() for work in queue]
        self._bands = {}
        for work in waiting:
            if work.since >= since:
                self.add(work)
        return [work for work in waiting if work.since < since]


class Share:
    """The slots of a handler with a bound of its own, or of all others, and their work that waits for one."""

    def __init__(self, handlers: Sequence[Handler], concurrency: int) -> None:
        self.handlers = handlers
        self.kinds = [kind for handler in handlers for kind in handler.claims]
        self.limit = min(handlers[0].concurrency or concurrency, concurrency)
        self.running = 0
        self.waiting = Waiting()
        self._mean: float | None = None

    def took(self, seconds: float) -> None:
        """Add a duration to the moving average of how long work takes."""
        self._mean = seconds if self._mean is None else self._mean + 0.1 * (seconds - self._mean)

    @property
    def ahead(self) -> int:
        """How many events may wait for a slot: as many as will start within the horizon, none before work ended."""
        if self._mean is None:
            return 0
        return min(MOST_WAITING, int(self.limit * HORIZON / max(self._mean, 1e-6)))


@dataclass(eq=False)
class Slots:
    """Run work in ``concurrency`` slots. A handler with a bound of its own gets fewer.

    Commands and interactions have slots of their own. These claim no more events than they can start at once, since
    another worker may have a free one, and do not wait until other outcomes are settled.
    """

    settings: WorkerSettings
    handlers: Mapping[str, Handler]
    """All are interactive, or none of them is."""
    runner: Runner
    leases: Leases
    capacity: Capacity
    """Freed when work ends."""
    answers: AnswerSender

    def __post_init__(self) -> None:
        settings, handlers = self.settings, self.handlers
        self._loop = asyncio.get_running_loop()
        self._interactive = all(handler.interactive for handler in handlers.values())
        self._concurrency = settings.interactive_concurrency if self._interactive else settings.concurrency
        self.kinds = list(handlers)
        self._waited = {kind: handler for kind, handler in handlers.items() if handler.waits}
        """The handlers of kinds for which Slack's requests wait."""
        together: dict[Handler | None, list[Handler]] = {None: []}
        for handler in dict.fromkeys(handlers.values()):
            together.setdefault(None if handler.concurrency is None else handler, []).append(handler)
        self._shares = [Share(each, self._concurrency) for each in together.values() if each]
        self._share_of = {handler: share for share in self._shares for handler in share.handlers}
        self._running: dict[Work, None] = {}  # in the order of their starts
        self._overtaking = 0
        """How many more claims may look for the event of the last notification, which may overtake waiting ones."""
        self._variables = fresh_variables()
        self._closed = False
        self._resting = False

    def running(self) -> list[Work]:
        """Return the work that holds a slot."""
        return list(self._running)

    def free(self) -> list[tuple[list[str], int]]:
        """Return what may be claimed now: kinds with a common bound, and how many events of them."""
        return self._claimable(overtaking=self._overtaking > 0)

    def _claimable(self, *, overtaking: bool) -> list[tuple[list[str], int]]:
        if self.bytes_left <= 0 or self._resting:
            return []
        left = MOST if self._interactive else MOST_UNSETTLED - len(self.leases.held)
        free = ((share.kinds, min(self._free(share, overtaking), left)) for share in self._shares)
        return [(kinds, count) for kinds, count in free if count > 0]

    def full(self) -> bool:
        """Return whether events of some kind would find no slot."""
        return len(self._claimable(overtaking=False)) < len(self._shares)

    def busy(self) -> bool:
        """Return whether that is so, or more than half of the slots are taken."""
        return 2 * len(self._running) > self._concurrency or self.full()

    def let_overtake(self) -> None:
        """Let events be claimed singly though none finds a slot: a new one may come before the waiting ones."""
        self._overtaking = OVERTAKING
        if self.free():
            self.capacity.free()

    @property
    def bytes_left(self) -> int:
        """How many characters of events and outcomes the worker may still take into memory."""
        return self.settings.claim_bytes - (0 if self._interactive else self.leases.bytes)

    @contextmanager
    def opening(self, events: Sequence[Event]) -> Iterator[None]:
        """Let the worker know of claims for the length of the block, in which their events are decrypted."""
        claims = {(event.id, event.claim) for event in events}
        self.leases.opening |= claims
        try:
            yield
        finally:
            self.leases.opening -= claims

    def left_out(self, free: Sequence[object]) -> None:
        """Remember whether ``free``, for which a claim begins, leaves out kinds: then their next slot ends a sleep."""
        self.capacity.left_out = len(free) < len(self._shares)
        self._overtaking = max(self._overtaking - 1, 0)

    def _free(self, share: Share, overtaking: bool) -> int:
        """Return how many events of a share may be claimed; 0 as long as a larger batch is better."""
        ahead = 0 if self._interactive else share.ahead
        slots = min(share.limit - share.running, self._concurrency - len(self._running))
        free = min(slots + ahead - len(share.waiting), MOST)
        if free > min(int(ahead * FRESH / HORIZON), MOST // 2):
            return free
        return int(overtaking and ahead <= 10 and free + ahead > 0)  # with more ahead, a claim comes soon

    def accept(self, events: Sequence[Event], claimed_at: float) -> None:
        """Hold claimed events, and start each that finds a slot.

        After :meth:`close`, or if the claim's answer took longer than the lease, the events are released.
        """
        lease_ends, now = self.leases.ends(claimed_at), self._loop.time()
        works = works_of(events, self.handlers, lease_ends, now)
        for work in works:
            self.leases.add(work)
        if self._closed or lease_ends < now:
            self._release(works)
            return
        for work in works:
            self._share_of[work.handler].waiting.add(work)
        self._start()
        if self._waited:
            for event in events:
                if event.kind in self._waited and not self._waited[event.kind].answers_to(event):
                    self.answers.acknowledge(event)

    def _start(self) -> None:
        for share in self._shares:
            while share.waiting and share.running < share.limit and len(self._running) < self._concurrency:
                work = self._take(share)
                work.task = self._loop.create_task(self._run(work, share), context=self._variables.copy())
        if len(self._shares) > 1:
            self._shares.append(self._shares.pop(0))  # the next slot goes to another share first

    async def _run(self, work: Work, share: Share) -> None:
        """Run work, then what waits for its slot: a task for each would cost as much as a short handler."""
        task, began = work.task, time.perf_counter()
        until = began + TURN
        try:
            while True:
                goes_on = False
                try:
                    goes_on = await self.runner.run(work)
                finally:
                    ended = time.perf_counter()
                    self._end(work, share, ended - began, goes_on=goes_on)
                # A task that was cancelled at the end of its work, or holds its values, is not used again.
                if (
                    ended > until
                    or len(self._shares) > 1
                    or not share.waiting
                    or task is None
                    or task.cancelling()
                    or left_values(self._variables)
                ):
                    break
                work, began = self._take(share), ended
                work.task = task
        finally:
            self._start()

    def _end(self, work: Work, share: Share, seconds: float, *, goes_on: bool) -> None:
        share.took(seconds)
        share.running -= 1
        self._running.pop(work, None)
        work.task = None  # it may run other work now, which a stop of this one must not cancel
        if goes_on:
            work.since = self._loop.time()
            self._share_of[work.handler].waiting.add(work, first=True)  # its group waits for it already
        self.capacity.free()

    def _take(self, share: Share) -> Work:
        work = share.waiting.take(self._loop.time())
        share.running += 1
        self._running[work] = None
        return work

    async def freed(self) -> None:
        """Wait until more may be claimed. Release work that has waited for a slot for too long."""
        if not await self.capacity.freed(within=PATIENCE):
            self._release(self._take_waiting(self._loop.time() - PATIENCE))

    def _take_waiting(self, since: float = float("inf")) -> list[Work]:
        return [work for share in self._shares for work in share.waiting.take_since(since)]

    def _release(self, works: Iterable[Work]) -> None:
        for work in works:
            self.runner.release(work)

    def close(self) -> None:
        """Release events that are claimed from now on, and wake the claimer."""
        self._closed = True
        self.capacity.free()

    def rest(self, resting: bool) -> None:
        """Have no free slots until ``resting`` is false again. Other workers get what waits for one; what runs ends."""
        if resting == self._resting:
            return
        self._resting = resting
        log.info("an operator drained this worker" if resting else "an operator resumed this worker")
        if resting:
            self._wind_up()
        self.capacity.free()

    def _wind_up(self) -> None:
        """Release waiting work, and start nothing more. A group ends after its current event."""
        self._release(self._take_waiting())
        for work in self._running:
            work.wind_up()

    async def drain(self, within: float) -> None:
        """Release waiting work, let running handlers end within ``within`` seconds, then cancel them."""
        self._wind_up()
        await self._ended(within)
        for work in self._running:
            work.stop(DRAINED)
        await self._ended(5.0)  # that handlers have to end after they were cancelled

    async def _ended(self, within: float) -> None:
        tasks = [work.task for work in self._running if work.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=within)
