"""Virtual time: an event loop whose clock jumps to the next timer as soon as nothing is left to do."""

import asyncio
import selectors
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import floor
from typing import Any

EPOCH = 1_790_000_000.0
"""When each simulation begins, as seconds since 1970."""
DIGITS = 7
"""Of times, in seconds. Else the sum of pauses would depend on all timers that were due, and so on earlier seeds."""
PATIENCE = 60.0
"""Real seconds for which the database may be silent."""


class DeadlockError(Exception):
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
    """Advance the loop's clock instead of waiting, unless the database works."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[Any]:
        loop = self.loop
        if loop.outside:
            if timeout == 0:
                return []  # an answer of the database comes when nothing else is ready, so a run repeats exactly
            found = super().select(PATIENCE)
            if not found:
                raise DeadlockError(f"the database was silent for {PATIENCE:g} s")
            return found
        if timeout is None:
            loop.advance()
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop. ``now``: seconds since the simulation began."""

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self.now = 0.0
        self.outside = 0
        self._numbers = count()
        self._timers: list[tuple[float, int, _Later]] = []
        """The loop's own would compare their times in Python."""
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def advance(self) -> None:
        """Go on to the next timers. Those of the same time run in the order in which they were set.

        Otherwise their order would depend on the other timers, and so on earlier seeds.

        Raises:
            DeadlockError: there is none.
        """
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heappop(timers)
        if not timers:
            raise DeadlockError("every task waits for another one")
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

    @contextmanager
    def real(self) -> Iterator[None]:
        """Let real time pass in the block, in which the database works. No virtual time passes."""
        self.outside += 1
        try:
            yield
        finally:
            self.outside -= 1


RUNNING: list[VirtualLoop] = []
"""The loop of the simulation under way, alone."""


def use_virtual_time() -> None:
    """Let the clocks of this process show the time of the simulation under way.

    Only a process that does nothing else may do so, before it imports what keeps a clock for later.
    """
    time.time = lambda: EPOCH + _now() + _skew()
    time.time_ns = lambda: int((EPOCH + _now() + _skew()) * 1e9)
    time.monotonic = time.perf_counter = _now


def _now() -> float:
    return RUNNING[0].now if RUNNING else 0.0


def _skew() -> float:
    process = HERE.get(None)
    return 0.0 if process is None else process.skew
