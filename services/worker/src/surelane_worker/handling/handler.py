"""A registered handler: its bounds, how it is called, and the context of an attempt."""

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from surelane.events import Event
from surelane.queue import Queue
from surelane_service.engine import Engine
from surelane_service.logs import Logger
from surelane_worker.handling.limit import Limit
from surelane_worker.handling.routes import Takes
from surelane_worker.settings import WorkerSettings
from surelane_worker.slack.client import SlackClients
from surelane_worker.slack.replies import Replies

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Services:
    """The objects that all handlers of a worker share."""

    queue: Queue
    engine: Engine
    check_claim: "ClaimCheck"
    settings: WorkerSettings
    slack: SlackClients
    log: Logger
    loop: asyncio.AbstractEventLoop


class Stoppable(Protocol):
    """Work that may lose its claim while its handler runs."""

    @property
    def stopped(self) -> str | None:
        """Why it was stopped, or ``None``."""


ClaimCheck = Callable[[Stoppable], Awaitable[None]]
"""Returns while a claim stands; otherwise cancels its handler."""


class Context:
    """The surroundings of one attempt. Each part is made on first use, because most handlers need few of them."""

    __slots__ = ("_events", "_log", "_services", "_slack", "_work")

    def __init__(self, services: Services, events: Sequence[Event], work: Stoppable) -> None:
        self._services = services
        self._events = events
        self._work = work
        self._slack: Replies | None = None
        self._log: Logger | None = None

    @property
    def slack(self) -> Replies:
        """Replies that are sent once even if the attempt is repeated; ``slack.client`` is the plain Web API client."""
        if self._slack is None:
            check_claim = partial(self._services.check_claim, self._work)
            self._slack = Replies(self._services.slack, self._services.engine, self.log, check_claim)
        return self._slack

    @property
    def queue(self) -> Queue:
        """The queue: enqueue further jobs, cancel and reschedule them, read the children of a workflow."""
        return self._services.queue

    @property
    def settings(self) -> WorkerSettings:
        """The worker's settings."""
        return self._services.settings

    @property
    def log(self) -> Logger:
        """A logger whose lines carry the event's id, kind and attempt."""
        if self._log is None:
            first = self._events[0]
            self._log = self._services.log.bind(event_id=first.key, kind=first.kind, attempt=first.attempts)
        return self._log

    @property
    def attempt(self) -> int:
        """The number of this attempt; 1 is the first."""
        return self._events[0].attempts

    @property
    def cancelled(self) -> bool:
        """Whether the lease is lost or the worker stops.

        A thread cannot be cancelled, so synchronous handlers should ask.
        """
        return self._work.stopped is not None

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine, such as ``ctx.slack.reply(…)``, from a synchronous handler and wait for its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._services.loop).result()


Given = Event | list[Event]
"""A handler's first argument: one event, or for ``on_group`` all visible events of a group in order."""

Call = Callable[[Given, Context], Awaitable[object]]
Middleware = Callable[[Given, Context, Call], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Route:
    """A handler for some events of its kinds.

    Attributes:
        handler: the handler.
        takes: says whether an event of these kinds is for it.
    """

    handler: "Handler"
    takes: Takes


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity: slots look handlers up for each event
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
    limit: Limit | None = None
    """How many may run at once, or begin in a period, in all workers."""
    routes: tuple[Route, ...] = ()
    """The handlers that take some of its events instead, in the order in which they are tried."""

    def within(self, middlewares: Sequence[Middleware]) -> "Handler":
        """Return this handler inside ``middlewares``, the first of them outermost."""
        return replace(self, call=wrapped(self.call, middlewares))

    def for_event(self, event: Event) -> "Handler":
        """Return the handler of an event: the first route's that takes it, otherwise this one."""
        for route in self.routes:
            if event.kind in route.handler.kinds and route.takes(event):
                return route.handler
        return self


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
