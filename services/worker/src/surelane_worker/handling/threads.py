"""Run a synchronous function in a thread of its own, and wait for its result in the event loop.

A thread cannot be stopped. After a timeout or a lost lease it runs on, and its result is ignored. So the threads are
daemons: the threads of a pool would keep the process from ending.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from functools import partial


async def in_thread(function: Callable[[], object]) -> object:
    """Call a function in a new thread and return its result, or raise what it raised."""
    loop = asyncio.get_running_loop()
    finished: asyncio.Future[object] = loop.create_future()
    run = partial(contextvars.copy_context().run, function)
    threading.Thread(target=_report, args=(run, loop, finished), name="handler", daemon=True).start()
    return await finished


def _report(
    run: Callable[[], object], loop: asyncio.AbstractEventLoop, finished: asyncio.Future[object]
) -> None:
    try:
        settle = partial(_finish, finished, run(), None)
    except BaseException as error:  # noqa: BLE001 - raised again where the function is awaited
        settle = partial(_finish, finished, None, error)
    if not loop.is_closed():
        loop.call_soon_threadsafe(settle)


def _finish(finished: asyncio.Future[object], result: object, error: BaseException | None) -> None:
    if finished.done():  # the caller was cancelled
        return
    if error is None:
        finished.set_result(result)
    else:
        # A future refuses StopIteration. A thread's SystemExit would end the event loop.
        safe = (
            error
            if isinstance(error, Exception) and not isinstance(error, StopIteration)
            else RuntimeError(repr(error))
        )
        finished.set_exception(safe)
