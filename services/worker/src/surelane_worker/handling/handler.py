"""Describe a registered handler: the events it takes, how it is called, and its bounds."""

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from surelane.events import Event
from surelane_worker.handling.context import Context

Given = Event | list[Event]
"""A handler's first argument: one event, or for ``on_group`` all visible events of a group in order."""

Call = Callable[[Given, Context], Awaitable[object]]
Middleware = Callable[[Given, Context, Call], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler and its bounds.

    Attributes:
        name: the function's name, for logs.
        kinds: the kinds of events it takes.
        call: runs the function inside its middleware.
        grouped: whether it takes the events of a group together.
        timeout: seconds that an attempt may take; ``None`` for no limit.
        concurrency: how many may run at once in a worker; ``None`` for as many as the worker has slots.
    """

    name: str
    kinds: tuple[str, ...]
    call: Call
    grouped: bool = False
    timeout: float | None = None
    concurrency: int | None = None


def wrapped(call: Call, middlewares: Sequence[Middleware]) -> Call:
    """Return ``call`` inside ``middlewares``, the first of them outermost."""
    for middleware in reversed(middlewares):
        call = partial(_through, middleware, call)
    return call


def _through(middleware: Middleware, call: Call, given: Given, context: Context) -> Awaitable[object]:
    return middleware(given, context, call)


def threaded(function: Callable[[Given, Context], object]) -> Call:
    """Return a synchronous handler as an asynchronous one that runs each call in its own thread.

    A thread cannot be stopped. After a timeout or a lost lease it runs on, and its result is ignored. So the threads
    are daemons: the threads of a pool would keep the process from ending.
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
