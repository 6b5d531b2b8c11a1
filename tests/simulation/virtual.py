"""Virtual time: an event loop whose clock jumps to the next timer as soon as nothing is left to do."""

import asyncio
import selectors
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

EPOCH = 1_790_000_000.0
"""When each simulation begins, as seconds since 1970."""
PATIENCE = 30.0
"""Real seconds for which the database may be silent."""


class DeadlockError(Exception):
    """Nothing is left to do, and nothing would ever happen."""


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
            raise DeadlockError("every task waits for another one")
        loop.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop. ``now``: seconds since the simulation began."""

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self.now = 0.0
        self.outside = 0
        super().__init__(selector)

    def time(self) -> float:
        return self.now

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
    time.time = lambda: EPOCH + _now()
    time.time_ns = lambda: int((EPOCH + _now()) * 1e9)
    time.monotonic = time.perf_counter = _now


def _now() -> float:
    return RUNNING[0].now if RUNNING else 0.0
