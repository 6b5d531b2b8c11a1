"""Name the handler that blocks the event loop: nothing else of the worker runs meanwhile, heartbeats included."""

import asyncio
import threading
import traceback
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any

from surelane_service.logs import get_logger
from surelane_worker.handling.records import LONGEST_TRACEBACK, line_in, traceback_of
from surelane_worker.leasing import Work
from surelane_worker.observing.metrics import Metrics

LOOK = 0.25
"""Seconds between two looks of the thread, and between two beats of the event loop."""
LOOKS = 4
"""Looks without a beat, about a second, until the handler is named. A process that was stopped makes none."""
BLOCKED = LOOK * LOOKS

log = get_logger("surelane_worker.running.watchdog")


class Watchdog:
    """Warns when the event loop is blocked, from a thread, and says when it goes on and how long that took.

    C code that keeps the interpreter's lock stops the thread, too: then only the length is known.
    """

    def __init__(self, works: Callable[[], Iterable[Work]], metrics: Metrics) -> None:
        """``works`` returns the work that runs."""
        self._works = works
        self._metrics = metrics
        self._beats = 0
        self._named = False

    async def run(self) -> None:
        """Watch the event loop of the current thread until cancelled."""
        stop = threading.Event()
        watched = asyncio.get_running_loop(), threading.get_ident(), stop
        threading.Thread(target=self._watch, args=watched, name="watchdog", daemon=True).start()
        try:
            while True:
                began = monotonic()
                await asyncio.sleep(LOOK)
                self._beats += 1
                if (seconds := monotonic() - began - LOOK) >= BLOCKED or self._named:
                    self._named = False
                    self._metrics.loop_blocked += seconds
                    log.warning("the event loop goes on", seconds=round(seconds, 2))
        finally:
            stop.set()

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int, stop: threading.Event) -> None:
        seen = looks = 0
        while not stop.wait(LOOK):
            looks = looks + 1 if self._beats == seen else 0
            seen = self._beats
            if looks == LOOKS:
                self._name(loop, thread)

    def _name(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        """Log what runs. Without a task, the event loop itself waits for a processor."""
        task = asyncio.current_task(loop)
        if task is None:
            return
        found = traceback_of(thread, getattr(task.get_coro(), "cr_frame", None))
        place, stack = line_in(found), "".join(traceback.format_tb(found))[-LONGEST_TRACEBACK:]
        named: dict[str, Any] = {}
        for work in self._works():
            if work.task is task:
                named, work.blocked = work.named, place or "an unknown line"
        self._named = True
        log.warning("a handler blocks the event loop", **named, where=place, stack=stack)
