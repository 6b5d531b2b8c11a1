"""Run synchronous functions in threads of their own, and wait for their results in the event loop.

A thread cannot be stopped. After a timeout its caller waits until it ends: nothing runs twice at once, and its slot
stays taken. After a lost lease, a cancel or a drain it runs on, and its result is ignored. So the threads are daemons:
the threads of a pool would keep the process from ending.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from functools import partial

from surelane_service.logs import get_logger
from surelane_worker.handling.records import traceback_of

log = get_logger("surelane_worker.handling.threads")


class Threads:
    """The threads of one attempt."""

    def __init__(self, stopped: Callable[[], bool]) -> None:
        """``stopped`` returns whether the attempt must end, without regard to its threads."""
        self._stopped = stopped
        self.overdue = 0
        """How many of them go on after their timeout."""

    async def run(self, function: Callable[[], object]) -> object:
        """Call a function in a new thread and return its result, or raise what it raised."""
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
            if not self._stopped():
                await self._outlast(finished)
            finished.cancel()
            raise error.with_traceback(at) from None
        return finished.result()

    async def _outlast(self, finished: asyncio.Future[object]) -> None:
        log.warning("a synchronous function goes on after its timeout; it keeps its slot until it ends")
        self.overdue += 1
        try:
            await asyncio.wait([finished])
        finally:
            self.overdue -= 1
        finished.exception()


def _settle(finished: asyncio.Future[object], settle: Callable[[], None]) -> None:
    if not finished.done():  # the caller was cancelled
        settle()


def _safe(error: BaseException) -> Exception:
    """Return an exception for a future: it refuses StopIteration, and a thread's SystemExit would end the loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(repr(error))
