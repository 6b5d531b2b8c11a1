"""Decide when a handler's tasks go on, and when the handler is suspended.

A handler may have several steps and waits at once. Their results come one at a time, and what follows from a result
runs before the next one comes. A later attempt gets them in the order in which they were stored. So a race that the
first run decided is decided alike.

Each wait parks its task. Once nothing but its waits can wake the handler, it is suspended on all of them together.
Until then something else goes on, such as a reply or a call: a wait that is over meanwhile ends at once.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any, NoReturn

from surelane.errors import SurelaneError
from surelane_service.lifecycle import RUN, apart
from surelane_worker.handling.outcomes import Suspend, Wait
from surelane_worker.handling.pending import cuts_of, going_on, tasks_of

SURE = 3
"""Turns of the event loop after which a task that ended has woken those that await it."""
TURNS = 20
"""Turns in which a handler that is to do nothing new may still register an undo."""
COMING = 60.0
"""Seconds for which it may take its time, such as for a call or a timeout, until it comes to all that is stored."""
LOOK, SOONEST = 1.0, 0.1
"""Seconds between two looks whether a wait is over, while something else goes on: at most, and at least."""
HELD_BACK, HELD_BACK_TIMED = 1.0, 0.05
"""Seconds for which a stored result waits for an earlier one that the handler has not come to. A timeout of the handler
must not cut off what is done meanwhile. One that only goes on without it passes first, as in the run before."""
AFTER = 10
"""Turns in which what follows from a task's result runs, before another task gets one."""
STOP = "stop"
"""The sort of a wait that never ends, of a handler that is to do nothing new."""


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


@dataclass(frozen=True, slots=True)
class AttemptTasks:
    """What an attempt tells its flow about itself.

    Attributes:
        main: the task that runs the handler; ``None`` if a thread runs it.
        mark: what the contexts of its tasks have as :data:`RUN`.
        apart: a task among them that only waits for the handler's thread.
        thread_works: whether the handler's own thread runs, and does not wait for ``ctx``.
    """

    main: asyncio.Task[Any] | None = None
    mark: object = None
    apart: asyncio.Task[Any] | None = None
    thread_works: Callable[[], bool] = bool


class Flow:
    """The tasks of one attempt that use steps and waits."""

    def __init__(
        self,
        run: AttemptTasks,
        before: Callable[[], Awaitable[None]],
        due: Callable[[], Awaitable[AbstractSet[tuple[str, int]]]],
    ) -> None:
        """``before`` is awaited before the handler is suspended. ``due`` returns which waits are over."""
        self.main, self._run, self._due = run.main, run, due
        self.over = False
        """Whether the handler is suspended or has ended. Nothing may begin then."""
        self.left: object = self
        """What the tasks that an earlier flow left running have as :data:`RUN`: they are to begin nothing."""
        self.reached: Callable[[], bool] = lambda: True
        """Returns whether the handler has come to all that is stored."""
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
        self._waits: dict[asyncio.Future[None], tuple[Wait, asyncio.Task[object] | None, float]] = {}
        """Each with its task, and when it began."""
        self._cuts: dict[asyncio.Future[None], None] = {}
        """What parks tasks that an earlier run saw cut off."""
        self._watched = set[asyncio.Future[Any]]()
        self._serving: asyncio.Task[None] | None = None
        self._places: dict[Key, int] = {}
        self._next = 0
        """The place of the next stored result that no task has got yet."""
        self._got: set[int] = set()
        self._own: set[int] = set()
        """The places of results that the handler's own task has not got yet."""
        self.latest: Key | None = None
        """The latest step or wait that has ended for the handler."""
        self._came: set[Key] = set()
        self._last: asyncio.Task[object] | None = None
        self._giving = asyncio.Lock()
        self._ending: asyncio.Task[None] | None = None
        self._cancelled = False
        """Whether the suspension has cancelled the handler's task."""

    def check(self) -> None:
        """Raise :class:`Suspended` if the handler is suspended or has ended, or the caller is left of an ended one."""
        if self.over or RUN.get() is self.left:
            raise Suspended

    def stored(self, keys: Mapping[Key, bool]) -> None:
        """Take the keys whose results are stored, in their order, and whether the handler's own task asks for each."""
        self._places = {key: place for place, key in enumerate(keys)}
        self._own = {place for place, own in enumerate(keys.values()) if own}
        for key in self._came & keys.keys():
            self._take(key)

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
            soon = self._loop.call_later(HELD_BACK_TIMED, self._pass_timed, place)
            late = self._loop.call_later(HELD_BACK, self._pass_late, place, self._loop.time() + COMING)
            try:
                await self._parked(gate)
            finally:
                soon.cancel()
                late.cancel()

    def _pass_timed(self, place: int) -> None:
        if True in self._cuts_of_gates(self._tasks_of_run()):
            self._pass(place)

    def _pass_late(self, place: int, until: float) -> None:
        """Let a result come, unless it came after a timeout, past which the handler came to what was stored before.

        If the handler's own task is yet to come to that, then only past its timeout. Another task may come there while
        the timeout runs, and late.
        """
        yet = [self.main] if self.main and any(self._next <= each < place for each in self._own) else []
        tasks = self._tasks_of_run() if self._loop.time() < until else ()
        if place > self._next and {False} in (self._cuts_of_gates(yet), self._cuts_of_gates(tasks)):
            self._loop.call_later(HELD_BACK, self._pass_late, place, until)
        else:
            self._pass(place)

    def _cuts_of_gates(self, timed: Collection[asyncio.Task[Any]]) -> set[bool]:
        return cuts_of(self._tasks_of_run(), {gate for _, _, gate in self._gates}, timed)

    async def follow(self) -> None:
        """Let what follows from the end of another task's step run first: it may end the handler."""
        for _ in range(AFTER):
            await asyncio.sleep(0)
        self.check()

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

    def come(self, key: Key) -> None:
        """Note that the handler's own task has come to a reply. Results that were stored after it may come now."""
        self._came.add(key)
        if key in self._places:
            self._take(key)

    def _take(self, key: Key) -> None:
        self._got.add(self._places[key])
        self._own.discard(self._places[key])
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

    async def cut(self, key: Key) -> NoReturn:
        """Park this task until it is cut off, as the run did that stored this. If nothing else can, this does it."""
        parked = self._loop.create_future()
        try:
            await self.turn(key)
            self._cuts[parked] = None
            await self._parked(parked)
        finally:
            self._cuts.pop(parked, None)
            self._last = asyncio.current_task()
            self._take(key)
        raise AssertionError("it ends by a cancel alone")

    async def wait(self, wait: Wait) -> None:
        """Park this task until its wait may be over. Raise :class:`Suspended` if the handler is suspended first."""
        parked = self._loop.create_future()
        self._waits[parked] = wait, asyncio.current_task(), self._loop.time()
        if self._serving is None:
            self._serving = apart(self._serve())
        late = self._loop.call_later(COMING, self._look)
        try:
            await self._parked(parked)
        finally:
            late.cancel()
            if not self.over:
                del self._waits[parked]

    async def _parked(self, until: asyncio.Future[None]) -> None:
        self._busy -= 1
        self._look()
        try:
            await until
        finally:
            self._busy += 1
            self._begun += 1

    def _look(self, _: object = None) -> None:
        waiting = self._gates or self._waits or self._cuts
        if not self._busy and self._looking is None and waiting and not self.over:
            self._looking = self._loop.call_soon(self._look_again, self._begun, 0)

    def _look_again(self, begun: int, turns: int) -> None:
        """Look whether anything but the handler's waits can wake it, and is still so a few turns later."""
        self._looking = None
        self._pass(self._next)
        # A handler that is to do nothing new awaits nothing else, once it has come to all that is stored.
        stopped = [since for wait, _, since in self._waits.values() if wait.sort == STOP]
        stops = stopped and (self.reached() or min(stopped) + COMING <= self._loop.time())
        if self._busy or self.over or begun != self._begun:
            self._look()
        elif not stops and self._goes_on():
            return
        elif turns < (TURNS if stops else SURE):
            self._looking = self._loop.call_soon(self._look_again, begun, turns + 1)
        elif self._cuts:
            next(iter(self._cuts)).cancel()
        elif self._gates:  # the code no longer asks for what was stored before
            self._pass(self._gates[0][0])
        elif self._waits:
            self._busy += 1
            self._ending = apart(self._suspend(begun))

    def _goes_on(self) -> bool:
        """Return whether something else goes on. Then look again when it ends, and end waits that are over."""
        tasks = self._tasks_of_run()
        parked = {*self._waits, *self._cuts, *(gate for _, _, gate in self._gates)}
        found = going_on(tasks, parked)
        if not (found or self._run.thread_works()):
            return False
        for future in found:
            if future is None:
                self._looking = self._looking or self._loop.call_soon(self._look_again, self._begun, 0)
            elif future not in self._watched:
                self._watched.add(future)
                future.add_done_callback(self._watched.discard)
                future.add_done_callback(self._look)
        return True

    def _tasks_of_run(self) -> set[asyncio.Task[Any]]:
        return {*tasks_of(self._run.mark), *([self.main] if self.main else [])} - {self._run.apart}

    async def _serve(self) -> None:
        """End waits that are over, as long as the handler is not suspended."""
        while self._waits and not self.over:
            now = self._loop.time()
            ends = [
                since + wait.seconds - now
                for wait, _, since in self._waits.values()
                if wait.seconds is not None
            ]
            await asyncio.sleep(max(min([LOOK, *ends]), SOONEST))
            try:
                due = await self._due()
            except SurelaneError:  # such as an outage: the next look is soon
                continue
            now = self._loop.time()
            for parked, (wait, _, since) in list(self._waits.items()):
                passed = wait.seconds is not None and since + wait.seconds <= now
                sent = wait.sort == "wait" and (wait.name, 0) in due
                over = passed or sent or (wait.name, wait.nth) in due
                if over and wait.sort != STOP and not parked.done():
                    parked.set_result(None)
        self._serving = None

    async def _suspend(self, begun: int) -> None:
        try:
            await self._before()
        except Suspended:  # the handler has ended meanwhile
            return
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
        self._end_all()

    def _end_all(self) -> None:
        self.over = True
        self.suspend = Suspend(tuple(wait for wait, _, _ in self._waits.values()))
        self._stop_serving()
        waiting = {task for _, task, _ in self._waits.values()}
        # First the handler: what its tasks are cancelled with must not look to it like their results.
        if self.main is not None and self.main not in waiting:
            self._cancelled = self.main.cancel()
        for parked, (_, task, _) in self._waits.items():
            if task is not None and task is not self.main:
                task.add_done_callback(_forget)
            if not parked.done():
                parked.set_exception(Suspended())
        for task in self._tasks - waiting:
            task.cancel()

    def _stop_serving(self) -> None:
        if self._serving is not None:
            self._serving.cancel()

    def close(self) -> None:
        """Stop what the handler has left running, as it has ended."""
        if self._cancelled and self.main is not None:
            self.main.uncancel()
        self.over = True
        if self._looking is not None:
            self._looking.cancel()
        self._stop_serving()
        for task in list(self._tasks):
            task.cancel()
            task.add_done_callback(_forget)


def _forget(task: asyncio.Task[object]) -> None:
    """Take a task's exception, which says that the handler is suspended: asyncio would log it."""
    if not task.cancelled():
        task.exception()
