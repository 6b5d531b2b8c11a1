"""Run synchronous functions in threads of their own, and wait for their results in the event loop.

A thread cannot be stopped. After a timeout, a cancel or a drain its caller waits until it ends: nothing runs twice at
once, nothing is undone before, and its slot stays taken. After a lost lease, and past a drain's end, it runs on, and
its result is ignored. So the threads are daemons: the threads of a pool would keep the process from ending.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from surelane_service.logs import get_logger
from surelane_worker.handling.records import traceback_of

LOST, DRAINED, CANCELLED = "lease lost", "worker stopping", "cancelled"
"""Why work stops: its claim no longer stands, its worker stops, or somebody cancelled its event."""

log = get_logger("surelane_worker.handling.threads")


class Threads:
    """The threads of one attempt."""

    def __init__(self, stopped: Callable[[], str | None]) -> None:
        """``stopped`` returns why the attempt must end, if it must."""
        self._stopped = stopped
        self.overdue = 0
        """How many of them go on after their timeout."""

    async def run(
        self, function: Callable[[], object], cancelled: Callable[[], None] | None = None
    ) -> object:
        """Call a function in a new thread and return its result, or raise what it raised.

        ``cancelled`` is called once the caller is cancelled, before it waits for the thread.
        """
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[object] = loop.create_future()
        call: Callable[[], object] = partial(contextvars.copy_context().run, function)

        def report() -> None:
            try:
                settle: Callable[[], None] = partial(finished.set_result, call())
            except BaseException as error:  # noqa: BLE001 - raised again where the function is awaited
                settle = partial(finished.set_exception, _safe(error))
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, finished, settle)

        thread = threading.Thread(target=report, name="handler", daemon=True)
        thread.start()
        try:
            await asyncio.wait([finished])
        except asyncio.CancelledError as error:
            at = traceback_of(thread.ident)
            if cancelled is not None:
                cancelled()
            await self._outlast(finished)
            finished.cancel()
            raise error.with_traceback(at) from None
        return finished.result()

    async def _outlast(self, finished: asyncio.Future[object]) -> None:
        self.overdue += 1
        log.warning(
            "a synchronous function goes on after its end was asked for; it keeps its slot until it ends"
        )
        try:
            await outlast(lambda: [] if finished.done() else [finished], self._stopped)
        finally:
            self.overdue -= 1
        if finished.done():
            finished.exception()


async def outlast(
    running: Callable[[], Collection[asyncio.Future[Any]]], stopped: Callable[[], str | None]
) -> bool:
    """Wait until nothing runs, or the claim is lost. Return whether somebody cancelled this meanwhile.

    Past a drain's end the process ends: a cancel after the drain's own says so.
    """
    cancelled, ends = False, stopped() == DRAINED
    while (left := running()) and stopped() in (None, CANCELLED, DRAINED):
        try:
            await asyncio.wait(left)
        except asyncio.CancelledError:
            cancelled = True
            if ends:
                break
            ends = stopped() == DRAINED
    return cancelled


def _settle(finished: asyncio.Future[object], settle: Callable[[], None]) -> None:
    if not finished.done():  # the caller was cancelled
        settle()


def _safe(error: BaseException) -> Exception:
    """Return an exception for a future: it refuses StopIteration, and a thread's SystemExit would end the loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(repr(error))
