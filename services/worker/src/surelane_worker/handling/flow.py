"""Decide when a handler's tasks go on, and when the handler is suspended.

A handler may have several steps and waits at once. Their results come one at a time, and what follows from a result
runs before the next one comes. A later attempt gets them in the order in which they were stored. So a race that the
first run decided is decided alike.

Each wait parks its task. Once no step runs and no task begins one, the handler is suspended on all its waits together.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import NoReturn

from surelane_worker.handling.outcomes import Suspend, Wait

TURNS = 20
"""Turns of the event loop in which no task of the handler begins a step, before it is suspended."""
AFTER = 10
"""Turns in which what follows from a task's result runs, before another task gets one."""


class Suspended(BaseException):
    """The handler stops here, and runs again when a wait of its event ends.

    It is no :class:`Exception`, so that a handler does not catch it by accident.
    """


@dataclass(frozen=True, slots=True)
class Key:
    """A step's name, and its number among the steps of that name in this run: 1 is the first."""

    name: str
    nth: int

    def __str__(self) -> str:
        return self.name if self.nth == 1 else f"{self.name} (number {self.nth})"


class Flow:
    """The tasks of one attempt that use steps and waits."""

    def __init__(self, main: asyncio.Task[object] | None, before: Callable[[], Awaitable[None]]) -> None:
        """``main`` runs the handler, unless a thread does. ``before`` is awaited before the handler is suspended."""
        self.main = main
        self.over = False
        """Whether the handler is suspended or has ended. Nothing may begin then."""
        self.suspend: Suspend | None = None
        """The outcome of a handler that is suspended."""
        self._before = before
        self._loop = asyncio.get_running_loop()
        self._busy = 0
        self._begun = 0
        self._looking: asyncio.Handle | None = None
        self._tasks: set[asyncio.Task[object]] = set()
        self._numbers = count()
        self._gates: list[tuple[int, int, asyncio.Future[None]]] = []
        """A heap of tasks that wait for their result's turn: its place, which one they are, what wakes them."""
        self._waits: dict[asyncio.Future[None], tuple[Wait, asyncio.Task[object] | None]] = {}
        self._places: dict[Key, int] = {}
        self._next = 0
        """The place of the next stored result that no task has got yet."""
        self._got: set[int] = set()
        self._last: asyncio.Task[object] | None = None
        self._giving = asyncio.Lock()
        self._ending: asyncio.Task[None] | None = None
        self._cancelled = False
        """Whether the suspension has cancelled the handler's task."""

    def check(self) -> None:
        """Raise :class:`Suspended` if the handler is suspended or has ended."""
        if self.over:
            raise Suspended

    def stored(self, keys: Sequence[Key]) -> None:
        """Take the keys whose results are stored, in their order."""
        self._places = {key: place for place, key in enumerate(keys)}

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Keep the handler from being suspended for the length of the block."""
        self.check()
        task = asyncio.current_task()
        if task is not None and task is not self.main and task not in self._tasks:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._busy += 1
        self._begun += 1
        try:
            yield
        finally:
            self._busy -= 1
            self._look()

    async def turn(self, key: Key) -> None:
        """Wait until the results that were stored before this one have been given."""
        place = self._places.get(key, len(self._places))
        while place > self._next:
            gate = self._loop.create_future()
            heappush(self._gates, (place, next(self._numbers), gate))
            await self._parked(gate)

    @asynccontextmanager
    async def giving(self) -> AsyncIterator[None]:
        """Let what follows from the last result of another task run first. In the block, this task gets one."""
        async with self._giving:
            task = asyncio.current_task()
            if self._last is not task and self._last is not None:
                for _ in range(AFTER):
                    await asyncio.sleep(0)
            self.check()
            self._last = task
            yield

    async def give(self, key: Key) -> None:
        """Wait until it is this stored result's turn."""
        await self.turn(key)
        if self._last is asyncio.current_task() and not self._giving.locked():
            self._take(key)
            return
        async with self.giving():
            self._take(key)

    def _take(self, key: Key) -> None:
        self._got.add(self._places[key])
        self._pass(self._next)

    def _pass(self, place: int) -> None:
        while place in self._got:
            self._got.discard(place)
            place += 1
        self._next = max(place, self._next)
        while self._gates and (self._gates[0][0] <= self._next or self._gates[0][2].done()):
            _, _, gate = heappop(self._gates)
            if not gate.done():
                gate.set_result(None)

    async def wait(self, wait: Wait) -> NoReturn:
        """Park this task until the handler is suspended. Then raise :class:`Suspended`."""
        parked = self._loop.create_future()
        self._waits[parked] = wait, asyncio.current_task()
        try:
            await self._parked(parked)
        finally:
            if not self.over:  # only this wait was cancelled, such as by a timeout around it
                del self._waits[parked]
        raise Suspended

    async def _parked(self, until: asyncio.Future[None]) -> None:
        self._busy -= 1
        self._look()
        try:
            await until
        finally:
            self._busy += 1
            self._begun += 1

    def _look(self) -> None:
        if not self._busy and self._looking is None and (self._gates or self._waits) and not self.over:
            self._looking = self._loop.call_soon(self._look_again, self._begun, TURNS)

    def _look_again(self, begun: int, turns: int) -> None:
        """Look for :data:`TURNS` turns of the event loop whether a task begins something."""
        self._looking = None
        self._pass(self._next)
        if self._busy or self.over or begun != self._begun:
            self._look()
        elif turns:
            self._looking = self._loop.call_soon(self._look_again, begun, turns - 1)
        elif self._gates:  # the code no longer asks for what was stored before
            self._pass(self._gates[0][0])
        elif self._waits:
            self._busy += 1
            self._ending = self._loop.create_task(self._suspend(begun))

    async def _suspend(self, begun: int) -> None:
        try:
            await self._before()
        except Exception as error:  # noqa: BLE001 - such as a lost claim: the waits raise it
            for parked in self._waits:
                if not parked.done():
                    parked.set_exception(error)
            return
        finally:
            self._busy -= 1
        if self._busy or self.over or begun != self._begun or not self._waits:
            self._look()
            return
        self.over = True
        self.suspend = Suspend(tuple(wait for wait, _ in self._waits.values()))
        waiting = {task for _, task in self._waits.values()}
        # First the handler: what its tasks are cancelled with must not look to it like their results.
        if self.main is not None and self.main not in waiting:
            self._cancelled = self.main.cancel()
        for parked, (_, task) in self._waits.items():
            if task is not None and task is not self.main:
                task.add_done_callback(_forget)
            if not parked.done():
                parked.set_exception(Suspended())
        for task in self._tasks - waiting:
            task.cancel()

    def close(self) -> None:
        """Stop what the handler has left running, as it has ended."""
        if self._cancelled and self.main is not None:
            self.main.uncancel()
        self.over = True
        if self._looking is not None:
            self._looking.cancel()
        for task in list(self._tasks):
            task.cancel()
            task.add_done_callback(_forget)


def _forget(task: asyncio.Task[object]) -> None:
    """Take a task's exception, which says that the handler is suspended: asyncio would log it."""
    if not task.cancelled():
        task.exception()
