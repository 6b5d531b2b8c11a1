"""Slots: which work runs now, which waits for a slot, and how much more may be claimed."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from time import perf_counter

from surelane_worker.handling.handler import Handler
from surelane_worker.running.work import DRAINED, Work

MOST = 600
"""Events claimed at a time, at most."""
MOST_WAITING = 2 * MOST
"""Events that wait for a slot, at most: slots stay busy while the next are claimed."""
HORIZON = 0.05
"""Work is claimed ahead of a free slot only if it will start within this many seconds, by how long work takes now."""
PATIENCE = 1.0
"""Work that waited for a slot for this long, in seconds, is given back: another worker may be free."""
WEIGHT = 0.1


class Line:
    """Handlers that share a bound, and their work that waits for a slot."""

    def __init__(self, kinds: Sequence[str], limit: int) -> None:
        self.kinds = list(kinds)
        self.limit = limit
        self.running = 0
        self.waiting: deque[Work] = deque()
        self._mean: float | None = None

    def took(self, seconds: float) -> None:
        """Learns how long work takes."""
        self._mean = seconds if self._mean is None else self._mean + WEIGHT * (seconds - self._mean)

    @property
    def ahead(self) -> int:
        """How much may wait for a slot: what will start within the horizon. Nothing, before anything is known."""
        if self._mean is None:
            return 0
        return min(MOST_WAITING, int(self.limit * HORIZON / max(self._mean, 1e-6)))


class Dispatch:
    """Runs work in slots: ``concurrency`` in all, fewer for handlers with a bound of their own."""

    def __init__(
        self,
        handlers: Iterable[Handler],
        concurrency: int,
        execute: Callable[[Work], Awaitable[bool]],
        on_room: Callable[[], None],
    ) -> None:
        """Nothing runs yet.

        Args:
            handlers: what work may be for.
            concurrency: how many run at once, at most.
            execute: runs work; answers whether it goes on, with another handler and so in another slot.
            on_room: called when work ended, so that more may be claimed.
        """
        handlers = list(handlers)
        self._loop = asyncio.get_running_loop()
        self._concurrency = concurrency
        self._execute = execute
        self._on_room = on_room
        self._line_of: dict[Handler, Line] = {}
        self.lines: list[Line] = []
        unbounded = [handler for handler in handlers if handler.concurrency is None]
        if unbounded:
            self._add_line(unbounded, concurrency)
        for handler in handlers:
            if handler.concurrency is not None:
                self._add_line([handler], min(handler.concurrency, concurrency))
        self._running: set[Work] = set()

    def _add_line(self, handlers: Sequence[Handler], limit: int) -> None:
        line = Line([kind for handler in handlers for kind in handler.kinds], limit)
        self.lines.append(line)
        self._line_of.update(dict.fromkeys(handlers, line))

    def room(self, line: Line) -> int:
        """How many events may be claimed for a line now; 0 also while it is better to wait for a larger batch."""
        ahead = line.ahead
        free = min(line.limit - line.running, self._concurrency - len(self._running))
        room = min(free + ahead - len(line.waiting), MOST)
        return room if room > min(ahead, MOST) // 2 else 0

    def add(self, works: Iterable[Work]) -> None:
        """Takes work and starts what finds a slot."""
        for work in works:
            self._line_of[work.handler].waiting.append(work)
        self._start()

    def _start(self) -> None:
        loop = self._loop
        for line in self.lines:
            while line.waiting and line.running < line.limit and len(self._running) < self._concurrency:
                work = line.waiting.popleft()
                line.running += 1
                self._running.add(work)
                work.task = loop.create_task(self._run(work, line))
        if len(self.lines) > 1:
            self.lines.append(self.lines.pop(0))  # the next slot goes to another line first

    async def _run(self, work: Work, line: Line) -> None:
        began, goes_on = perf_counter(), False
        try:
            goes_on = await self._execute(work)
        finally:
            line.took(perf_counter() - began)
            line.running -= 1
            self._running.discard(work)
            if goes_on:
                work.since = self._loop.time()
                self._line_of[work.handler].waiting.appendleft(work)  # its entity waits for it already
            self._start()
            self._on_room()

    def take_waiting(self, since: float = float("inf")) -> list[Work]:
        """Takes back the work that waits for a slot since before ``since``, by the event loop's clock."""
        taken = []
        for line in self.lines:
            taken += [work for work in line.waiting if work.since < since]
            line.waiting = deque(work for work in line.waiting if work.since >= since)
        return taken

    async def drain(self, within: float, grace: float = 5.0) -> None:
        """Lets running work end within ``within`` seconds, an entity's after its current event; then cancels it."""
        for work in self._running:
            work.wind_up()
        await self._ended(within)
        for work in self._running:
            work.stop(DRAINED)
        await self._ended(grace)

    async def _ended(self, within: float) -> None:
        tasks = [work.task for work in self._running if work.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=within)
