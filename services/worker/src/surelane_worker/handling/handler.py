"""One registered handler: which events it takes, how it is called, and what bounds it."""

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from surelane.events import Event
from surelane_worker.handling.context import Context

Given = Event | list[Event]
"""What a handler gets: one event, or in the group form all visible events of the entity in order."""

Call = Callable[[Given, Context], Awaitable[object]]
Middleware = Callable[[Given, Context, Call], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler and its bounds.

    Attributes:
        name: the function's, for logs.
        kinds: the kinds of events it takes.
        call: runs it, middleware included.
        grouped: whether it takes an entity's events together.
        timeout: seconds an attempt may take; ``None`` for no limit.
        concurrency: how many may run at once in a worker; ``None`` for as many as the worker runs.
    """

    name: str
    kinds: tuple[str, ...]
    call: Call
    grouped: bool = False
    timeout: float | None = None
    concurrency: int | None = None


def wrapped(call: Call, middlewares: Sequence[Middleware]) -> Call:
    """``call`` inside ``middlewares``, the first of them outermost."""
    for middleware in reversed(middlewares):
        call = partial(_through, middleware, call)
    return call


def _through(middleware: Middleware, call: Call, given: Given, context: Context) -> Awaitable[object]:
    return middleware(given, context, call)


def threaded(function: Callable[[Given, Context], object]) -> Call:
    """A synchronous handler as an asynchronous one: each call runs in a thread of its own.

    The threads are daemons. A thread cannot be stopped: one whose handler timed out or lost its lease runs on, its
    result ignored, and must not keep the process from ending, as a pool's threads would.
    """

    async def call(given: Given, context: Context) -> object:
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[object] = loop.create_future()
        run = partial(contextvars.copy_context().run, function, given, context)
        threading.Thread(target=_report, args=(run, loop, finished), name="handler", daemon=True).start()
        return await finished

    return call


def _report(
    run: Callable[[], object], loop: asyncio.AbstractEventLoop, finished: asyncio.Future[object]
) -> None:
    try:
        settle = partial(_finish, finished, run(), None)
    except BaseException as error:  # noqa: BLE001 - raised again where the handler is awaited
        settle = partial(_finish, finished, None, error)
    if not loop.is_closed():
        loop.call_soon_threadsafe(settle)


def _finish(finished: asyncio.Future[object], result: object, error: BaseException | None) -> None:
    if finished.done():  # nobody waits any more
        return
    if error is None:
        finished.set_result(result)
    else:
        # A future refuses StopIteration, and the loop must not see a thread's SystemExit.
        safe = (
            error
            if isinstance(error, Exception) and not isinstance(error, StopIteration)
            else RuntimeError(repr(error))
        )
        finished.set_exception(safe)
