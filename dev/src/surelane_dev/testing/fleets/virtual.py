"""Virtual time: an event loop whose clock jumps to the next timer as soon as nothing is left to do."""

import asyncio
import queue
import selectors
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import floor, inf
from typing import Any
from unittest.mock import patch

from surelane_worker.handling.threads import Threads

EPOCH = 1_790_000_000.0
"""When virtual time begins, as seconds since 1970."""
DIGITS = 7
"""Of times, in seconds. Else the sum of pauses would depend on all timers that were due, and so on earlier runs."""
PATIENCE = 300.0
"""Real seconds for which the database and threads may be silent: a slow machine's statements take a few of them.

Nothing else bounds a hang, because no step runs meanwhile that could be counted. It is shorter than a test's timeout.
"""


class StuckError(Exception):
    """Nothing is left to do, and nothing would ever happen."""


class Process:
    """A simulated process. While it is ``frozen``, as by SIGSTOP, none of its code runs and time goes on."""

    def __init__(self, skew: float = 0.0) -> None:
        self.skew = skew
        """Seconds by which its clock is ahead."""
        self.frozen = False
        self._held: list[_Later] = []

    def hold(self, held: "_Later") -> None:
        """Keep what it would do now until :meth:`thaw`."""
        self._held.append(held)

    def thaw(self) -> None:
        """Let it go on. All that it missed happens now, in order."""
        self.frozen = False
        held, self._held = self._held, []
        for each in held:
            each.again()


HERE: ContextVar[Process] = ContextVar("here")
"""The process that the current task belongs to."""
THREAD = threading.local()
"""Its ``number``: how many threads of the loop began before the current one."""


class _Later(asyncio.TimerHandle):
    """A callback that waits: for its time, or for its process to go on."""

    __slots__ = ("_act", "_within")

    def __init__(
        self, when: float, callback: Callable[..., object], args: Any, loop: "VirtualLoop", context: Context
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self._act, self._within = partial(callback, *args), context

    def __call__(self) -> None:
        if not self.cancelled():
            self._act()

    def again(self) -> None:
        """Do it now, unless the process stands still."""
        asyncio.get_running_loop().call_soon(self, context=self._within)


class _Selector(selectors.DefaultSelector):
    """Advance the loop's clock instead of waiting, unless a thread runs or the database works."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[Any]:
        loop = self.loop
        if timeout == 0 and (loop.outside or loop.threads):
            return []  # an answer comes when nothing else is ready, so a run repeats exactly
        if loop.threads or not loop.said.empty():
            loop.hear_threads()
        elif loop.outside:
            if not (found := super().select(PATIENCE)):
                raise StuckError(f"the database was silent for {PATIENCE:g} s")
            return found
        elif timeout is None:
            loop.advance()
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop. ``now``: seconds since virtual time began."""

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self.now = 0.0
        self.outside = 0
        self.threads = 0
        """How many threads run, and do not wait for the loop. No virtual time passes meanwhile."""
        self._numbers = count()
        self._timers: list[tuple[float, int, _Later]] = []
        """The loop's own would compare their times in Python."""
        self.said: queue.SimpleQueue[tuple[float, Callable[[], object], Context]] = queue.SimpleQueue()
        """What threads want to be called."""
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def advance(self) -> None:
        """Go on to the next timers. Those of the same time run in the order in which they were set.

        Otherwise their order would depend on the other timers, and so on earlier runs.

        Raises:
            StuckError: there is none.
        """
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heappop(timers)
        if not timers:
            raise StuckError("every task waits for another one")
        self.now = timers[0][0]
        while timers and timers[0][0] <= self.now:
            timer = heappop(timers)[2]
            if not timer.cancelled():
                timer.again()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        context = copy_context() if context is None else context
        process = context.get(HERE)
        if process is None or not process.frozen:
            return super().call_soon(callback, *args, context=context)
        held = _Later(self.now, callback, args, self, context)
        process.hold(held)
        return held

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        when = round(floor(when * 10**DIGITS + 1) / 10**DIGITS, DIGITS)
        timer = _Later(when, callback, args, self, copy_context() if context is None else context)
        heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> None:
        """Take a call from a thread, which then has ended or waits for the answer."""
        if threading.current_thread() is threading.main_thread():
            self.call_soon(callback, *args, context=context)
        else:
            number = getattr(THREAD, "number", inf)
            self.said.put((number, partial(callback, *args), context or copy_context()))

    def hear_threads(self) -> None:
        """Wait until each thread has ended or waits, and do what they say in the order in which they began.

        Raises:
            StuckError: one does neither. A handler's thread must not wait for the test.
        """
        heard = []
        while self.threads or not self.said.empty():
            try:
                heard.append(self.said.get(timeout=PATIENCE))
            except queue.Empty:
                raise StuckError(f"a thread ran for {PATIENCE:g} s") from None
            self.threads -= heard[-1][0] < inf
        for _, callback, context in sorted(heard, key=lambda each: each[0]):
            self.call_soon(callback, context=context)

    def in_thread(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Return a function for a thread that starts now: it counts until it says something to the loop."""
        self.threads += 1
        number = next(self._numbers)

        def run() -> Any:
            THREAD.number = number
            return function()

        return run

    def run_in_executor(self, _: object, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        return self.create_task(Threads(lambda: "apart").run(partial(func, *args)))

    @contextmanager
    def real(self) -> Iterator[None]:
        """Let real time pass in the block, in which the database works. No virtual time passes."""
        self.outside += 1
        try:
            yield
        finally:
            self.outside -= 1


@contextmanager
def virtual_time(loop: VirtualLoop) -> Iterator[None]:
    """Let the clocks of this process show the time of a loop in the block, and let its threads wait for the loop.

    A module that did ``from time import monotonic`` keeps the real clock.
    """

    def now() -> float:
        process = HERE.get(None)
        return EPOCH + loop.now + (0.0 if process is None else process.skew)

    clocks: dict[str, Callable[[], float]] = {"time": now, "time_ns": lambda: int(now() * 1e9)}
    clocks |= dict.fromkeys(("monotonic", "perf_counter"), loop.time)
    with ExitStack() as stack:
        for name, clock in clocks.items():
            stack.enter_context(patch.object(time, name, clock))
        stack.enter_context(patch.object(asyncio, "run_coroutine_threadsafe", _from_thread))
        stack.enter_context(patch.object(Threads, "run", _run))
        yield


async def _run(self: Threads, function: Callable[[], object], *given: Any, run: Any = Threads.run) -> object:
    loop = asyncio.get_running_loop()
    return await run(self, loop.in_thread(function) if isinstance(loop, VirtualLoop) else function, *given)


def _from_thread(what: Coroutine[Any, Any, Any], loop: VirtualLoop) -> Future[Any]:
    """Run a coroutine for a thread, which counts as waiting until it has ended."""
    answer: Future[Any] = Future()

    def hand_back(task: asyncio.Task[Any]) -> None:
        loop.threads += 1
        if task.cancelled():
            answer.cancel()
        elif (error := task.exception()) is not None:
            answer.set_exception(error)
        else:
            answer.set_result(task.result())

    loop.call_soon_threadsafe(lambda: loop.create_task(what).add_done_callback(hand_back))
    return answer
