"""A registered handler: its bounds, the function that it calls, and the routes that come before it."""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from surelane.errors import SettingsError
from surelane.events import Event
from surelane_service.durations import parse_duration
from surelane_worker.handling.context import Context
from surelane_worker.handling.debounce import Debounce
from surelane_worker.handling.limit import Limit, refused
from surelane_worker.handling.outcomes import Complete, Pause
from surelane_worker.handling.payload import with_payload
from surelane_worker.handling.routes import INTERACTIONS, Takes, every, ids, is_interactive

NO_ROUTE = {"unhandled": "no route"}
"""The result of an event that no route took."""


class HandlersError(SettingsError):
    """The handlers cannot be used."""


Given = Event | list[Event]
"""A handler's first argument: one event; for ``on_group`` or with ``debounce`` several of a group, in order."""

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
        answers: whether it calls :meth:`Context.ack`. The others' events are acknowledged when they are claimed.
        ordered: whether its commands and interactions wait for their turn in their thread.
        waits: whether its kinds are commands and interactions, for which Slack's requests wait.
    """

    name: str
    kinds: tuple[str, ...]
    call: Call
    grouped: bool = False
    timeout: float | None = None
    concurrency: int | None = None
    answers: bool = False
    ordered: bool = False
    waits: bool = False
    limit: Limit | None = None
    """How many may run at once, or begin in a period, in all workers."""
    debounce: Debounce | None = None
    """How long a run waits for more events. They are then handled as one: the first, and its followers."""
    routes: tuple[Route, ...] = ()
    """The handlers that take some of its events instead, in the order in which they are tried."""

    @property
    def interactive(self) -> bool:
        """Whether its events wait for no others: neither in their thread nor for a slot."""
        return self.waits and not self.ordered

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
    """Return a synchronous handler as an asynchronous one that runs each call in its own thread."""

    async def call(given: Given, context: Context) -> object:
        return await context.threads.run(partial(function, given, context))

    return call


def handler_of(
    function: Callable[..., Any],
    kinds: tuple[str, ...],
    timeout: Pause | None,
    concurrency: int | None,
    *,
    grouped: bool,
    answers: bool,
    ordered: bool,
    limit: Limit | None,
    debounce: Pause | None,
    max_wait: Pause | None,
) -> Handler:
    """Return the handler of a function, with its bounds; see :meth:`Handlers.on`.

    Raises:
        HandlersError: the function, its kinds or a bound cannot be used.
    """
    name = name_of(function)
    called = _checked(name, function, kinds, grouped or debounce is not None)
    if concurrency is not None and concurrency < 1:
        raise HandlersError(f"handler {name}: concurrency must be at least 1, not {concurrency}")
    if (answers or ordered) and not any(map(is_interactive, kinds)):
        raise HandlersError(
            f"handler {name}: answers and ordered are for commands and interactions, not {kinds[0]!r}"
        )
    if reason := refused(limit, kinds):
        raise HandlersError(f"handler {name}: limit: {reason}")
    call = cast("Call", called) if is_async(called) else threaded(called)
    try:
        waits = Debounce.of(debounce, max_wait, kinds)
    except ValueError as error:
        raise HandlersError(f"handler {name}: {error}") from None
    bound = _seconds(name, timeout)
    return Handler(
        name, kinds, call, grouped, bound, concurrency, answers, ordered, limit=limit, debounce=waits
    )


def _checked(
    name: str, function: Callable[..., Any], kinds: tuple[str, ...], several: bool
) -> Callable[[Any, Context], Any]:
    """Return the function as one of two arguments. One that takes the payload too is given it."""
    if not kinds or not all(kind and kind.isprintable() for kind in kinds):
        raise HandlersError(f"handler {name}: name the kinds it takes, such as 'slack.app_mention'")
    if takes_arguments(function, 2):
        return function
    if several:
        raise HandlersError(f"handler {name} must take two arguments: (events, ctx)")
    if not takes_arguments(function, 3):
        raise HandlersError(
            f"handler {name} must take two arguments: (event, ctx), or three: (event, ctx, payload)"
        )
    try:
        return with_payload(function, is_async=is_async(function))
    except ValueError as error:
        raise HandlersError(f"handler {name}: {error}") from error


def name_of(function: object) -> str:
    """Return the module and the name of a function, for logs and errors."""
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether it is a coroutine function, or an object whose call is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def takes_arguments(function: Callable[..., Any], count: int) -> bool:
    """Return whether it can be called with ``count`` arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True


def _seconds(name: str, timeout: Pause | None) -> float | None:
    if timeout is None:
        return None
    try:
        duration = parse_duration(timeout).total_seconds()
    except ValueError as error:
        raise HandlersError(f"handler {name}: timeout: {error}") from None
    if duration <= 0:
        raise HandlersError(f"handler {name}: timeout must be positive")
    return duration


def routed(tried: list[Route], end: Route | None, kinds: tuple[str, ...]) -> Handler:
    """Return the handler of ``kinds``, whose events ``end`` takes if no route before it does."""
    before = tried if end is None else tried[: tried.index(end)]
    chosen = tuple(
        route
        for route in before
        if route.takes is not every and not set(kinds).isdisjoint(route.handler.kinds)
    )
    if end is None:
        return Handler("no route", kinds, _unrouted, routes=chosen)
    if end.handler.grouped and chosen:
        raise HandlersError(
            f"handler {end.handler.name} takes several events of {kinds[0]!r}, so no route can take one of them: "
            f"{chosen[0].handler.name}"
        )
    return replace(end.handler, kinds=kinds, routes=chosen)


async def _unrouted(given: Given, ctx: Context) -> Complete:
    """Complete an event that no route took. People wait for what they clicked, so that is a warning."""
    event = cast("Event", given)
    if event.kind.startswith("slack.") and event.kind.removeprefix("slack.") in INTERACTIONS:
        ctx.log.warning("no route takes this event; it is completed", ids=ids(event))
    else:
        ctx.log.debug("no route takes this event; it is completed")
    return Complete(NO_ROUTE)
