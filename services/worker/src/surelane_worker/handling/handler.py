"""Registered handlers: their bounds, the functions that they call, and the routes that come before them."""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context as Variables
from contextvars import copy_context
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Unpack, cast, get_args

from surelane.codec import CURRENT
from surelane.errors import SettingsError
from surelane.events import Event
from surelane.jobs import Priority
from surelane.json_text import check_text, json_text
from surelane_service.common.durations import parse_duration
from surelane_service.cron import CatchUp, Cron, Overlap, read_catch_up
from surelane_service.lifecycle import RUN
from surelane_service.subscriptions import INTERACTIONS
from surelane_worker.handling.answers import REFUSED, SUBMISSION
from surelane_worker.handling.bounds import Bounds, Debounce, Limit, check_bounds
from surelane_worker.handling.context import Context, attempt_of
from surelane_worker.handling.outcomes import Backoff, Complete, Pause, backoff_of, positive
from surelane_worker.handling.routes import FIRST, Takes, every, ids, is_interactive, numbers, of_kind
from surelane_worker.handling.shapes import with_payload
from surelane_worker.slack.limiter import check_after_wait

_OURS = (CURRENT, RUN, check_after_wait)
"""Context variables that each attempt sets anew."""
_NOTHING = object()
FAILED = "surelane.failed:"
"""What stands before the kind of an event that ended in the kind of its failure hook's job."""
CLOSE = "surelane.close"
"""The kind of jobs that close what an ended event left open in Slack."""
LONGEST_NAME = 200
"""Characters of a kind, and of a schedule's name: what the database's tables hold."""

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
    """A handler for those events of its kinds that ``takes`` accepts."""

    handler: "Handler"
    takes: Takes


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity: slots look handlers up for each event
class Handler:
    """A handler and its bounds.

    Attributes:
        call: runs the function inside its middleware.
        grouped: whether it takes the events of a group together.
        timeout: seconds that an attempt may take; ``None`` for no limit.
        concurrency: how many may run at once in a worker; ``None`` for as many as the worker has slots.
        answers: whether it calls :meth:`Context.ack`. The others' events are acknowledged when they are claimed.
        ordered: whether its commands and interactions wait for their turn in their thread.
        waits: whether its kinds are commands and interactions, for which Slack's requests wait.
        max_attempts: of events that have no maximum of their own; ``None``: the worker's.
        backoff: the pauses between its attempts; ``None``: the worker's.
        limit: how many may run at once, or begin in a period, in all workers.
        debounce: how long a run waits for more events. They are then handled as one: the first, and its followers.
        versions: the handlers of the versions of its kinds. Its bounds, except ``timeout``, hold for all.
        routes: the handlers that take some of its events instead, in the order in which they are tried.
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
    max_attempts: int | None = None
    backoff: Backoff | None = None
    limit: Limit | None = None
    debounce: Debounce | None = None
    version: str | None = None
    versions: Mapping[str, "Handler"] = field(default_factory=dict)
    routes: tuple[Route, ...] = ()

    @property
    def interactive(self) -> bool:
        """Whether its events wait for no others: neither in their thread nor for a slot."""
        return self.waits and not self.ordered

    @property
    def claims(self) -> tuple[str, ...]:
        """The kinds that a worker claims for it: its kinds, and KIND@VERSION of each older version."""
        return (*self.kinds, *(of_kind(kind, version) for kind in self.kinds for version in self.versions))

    def within(self, middlewares: Sequence[Middleware]) -> "Handler":
        """Return this handler inside ``middlewares``, the first of them outermost."""
        call = self.call
        for middleware in reversed(middlewares):
            call = partial(_through, middleware, call)
        return replace(self, call=call)

    def for_event(self, event: Event) -> "Handler":
        """Return the handler of an event: the first route's that takes it, otherwise this one."""
        for route in self.routes:
            if event.kind in route.handler.kinds and route.takes(event):
                return route.handler
        return self

    def answers_to(self, event: Event) -> bool:
        """Return whether the handler of an event answers Slack's request."""
        try:
            return self.for_event(event).answers
        except Exception:  # noqa: BLE001 - a payload that no route can read fails its attempt
            return False


def _through(middleware: Middleware, call: Call, given: Given, context: Context) -> Awaitable[object]:
    return middleware(given, context, call)


def threaded(function: Callable[[Given, Context], object]) -> Call:
    """Run each call of a synchronous handler in a thread of its own."""

    async def call(given: Given, context: Context) -> object:
        attempt = attempt_of(context)
        attempt.main = None
        return await attempt.threads.run(
            partial(attempt.in_thread, function, given, context), attempt.stop_calls
        )

    return call


def handler_of(
    function: Callable[..., Any], kinds: tuple[str, ...], *, grouped: bool = False, **bounds: Unpack[Bounds]
) -> Handler:
    """Return the handler of a function, with its bounds; see :meth:`Handlers.on`."""
    name, timeout, backoff = name_of(function), bounds.get("timeout"), bounds.get("backoff")
    try:
        called = _checked(function, kinds, several=grouped or bounds.get("debounce") is not None)
        check_bounds(kinds, bounds)
        return Handler(
            name,
            kinds,
            cast("Call", called) if is_async(called) else threaded(called),
            grouped,
            None if timeout is None else positive("timeout", timeout).total_seconds(),
            bounds.get("concurrency"),
            bounds.get("answers", False),
            bounds.get("ordered", False),
            max_attempts=bounds.get("max_attempts"),
            backoff=None if backoff is None else backoff_of(positive("backoff", backoff)),
            limit=bounds.get("limit"),
            debounce=Debounce.of(bounds.get("debounce"), bounds.get("max_wait"), kinds),
            version=bounds.get("version"),
        )
    except ValueError as error:
        raise HandlersError(f"handler {name}: {error}") from error.__cause__


def _checked(
    function: Callable[..., Any], kinds: tuple[str, ...], *, several: bool
) -> Callable[[Any, Context], Any]:
    """Return the function as one of two arguments. One that takes the payload too is given it."""
    if not kinds or not all(kind and kind.isprintable() for kind in kinds):
        raise ValueError("name the kinds it takes, such as 'slack.app_mention'")
    if any(len(kind) > LONGEST_NAME for kind in kinds):
        raise ValueError(f"a kind has 1 to {LONGEST_NAME} characters")
    if takes_arguments(function, 2):
        return function
    if several:
        raise ValueError("it must take two arguments: (events, ctx)")
    if not takes_arguments(function, 3):
        raise ValueError("it must take two arguments: (event, ctx), or three: (event, ctx, payload)")
    return with_payload(function, is_async=is_async(function))


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


def routed(tried: list[Route], ends: Sequence[Route], kinds: tuple[str, ...]) -> Handler:
    """Return the handler of ``kinds``. If no route before takes an event, the first of ``ends`` does: the versions."""
    end = ends[0] if ends else None
    before = [route for route in tried[: tried.index(end) if end else None] if route.takes is not every]
    chosen = tuple(route for route in before if not set(kinds).isdisjoint(route.handler.kinds))
    if end is None:
        return Handler("no route", kinds, _unrouted, routes=chosen, answers=SUBMISSION in kinds)
    if end.handler.grouped and chosen:
        raise HandlersError(
            f"handler {end.handler.name} takes several events of {kinds[0]!r}, so no route can take one of them: "
            f"{chosen[0].handler.name}"
        )
    if any(route.handler.debounce != end.handler.debounce for route in ends):
        raise HandlersError(f"the versions of {kinds[0]!r} must have the same debounce: {end.handler.name}")
    versions = {route.handler.version: route.handler for route in ends if route.handler.version is not None}
    return replace(end.handler, kinds=kinds, routes=chosen, versions=versions)


@dataclass(frozen=True, slots=True)
class DeclaredSchedule:
    """A named schedule, created or changed when a worker starts; see :meth:`Handlers.cron`."""

    name: str
    schedule: str
    kind: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    time_zone: str = "UTC"
    catch_up: CatchUp = "one"
    priority: Priority = 1
    overlap: Overlap = "allow"
    jitter: Pause = 0

    def __post_init__(self) -> None:
        Cron(self.schedule, self.time_zone, parse_duration(self.jitter))
        for what, text in (("name", self.name), ("kind", self.kind)):
            if not 1 <= len(text) <= LONGEST_NAME:
                raise ValueError(f"its {what} has 1 to {LONGEST_NAME} characters")
        if self.kind == CLOSE or self.kind.startswith(FAILED):
            raise ValueError(f"a job of kind {self.kind} is stored by the end of an event alone")
        check_text(json_text(self.payload))
        read_catch_up(str(self.catch_up))
        if self.overlap not in get_args(Overlap):
            raise ValueError(f"overlap is allow, skip, queue or replace, not {self.overlap!r}")
        if self.priority not in get_args(Priority):
            raise ValueError(f"priority is 0, 1, 2 or 3, not {self.priority!r}")


class HandlerSet:
    """What a set of handlers has: routes, then one handler per kind, their middleware, and schedules."""

    def __init__(self) -> None:
        self.routes: list[Route] = []
        self.fallbacks: list[Route] = []
        self.middlewares: list[Middleware] = []
        self.own_schedules: list[DeclaredSchedule] = []
        self.hooks: list[tuple[tuple[str, ...], Handler]] = []
        """The failure hooks, each with its kinds; none: all of this set."""
        self.included: list[HandlerSet] = []

    def add(self, handler: Handler, takes: Takes | None) -> None:
        """Add a route, or without ``takes`` the handler of whole kinds."""
        if takes is None:
            self._check_one_per_kind(handler)
            self.fallbacks.append(Route(handler, every))
        else:
            self.routes.append(Route(handler, takes))
        self._check_reached()

    def all(self) -> list[Handler]:
        """Return one handler for each kind, with the routes that come before it.

        A handler of both interactions and other events is there twice.
        """
        tried = self.tried()
        last: dict[str, dict[str | None, Route]] = {
            kind: {} for route in tried for kind in route.handler.kinds
        }
        for route in tried:
            for kind in route.handler.kinds if route.takes is every else ():
                # The first one takes all, unless it names a version: then others may, too.
                if not last[kind] or None not in (route.handler.version, *last[kind]):
                    last[kind].setdefault(route.handler.version, route)
        alike: dict[tuple[tuple[Route, ...], bool], list[str]] = {}
        for kind, versions in last.items():
            ends = tuple(versions[version] for version in sorted(versions, key=numbers, reverse=True))
            alike.setdefault((ends, is_interactive(kind)), []).append(kind)
        return [
            replace(routed(tried, ends, tuple(kinds)), waits=waits) for (ends, waits), kinds in alike.items()
        ]

    def by_kind(self) -> dict[str, Handler]:
        """Return the handler of each kind that a worker claims."""
        return {kind: handler for handler in self.all() for kind in handler.claims}

    def tried(self) -> list[Route]:
        """Return all routes inside their middleware, in the order in which they are tried."""
        own = [*self.routes, *self.fallbacks]
        included = [route for other in self.included for route in other.tried()]
        hooks = []
        for kinds, hook in self.hooks:
            names = kinds or {kind: None for route in own + included for kind in route.handler.kinds}
            failed = tuple(FAILED + kind for kind in names if not kind.startswith("surelane."))
            if long := [kind for kind in failed if len(kind) > LONGEST_NAME]:
                most, kind = LONGEST_NAME - len(FAILED), long[0].removeprefix(FAILED)
                raise HandlersError(f"a kind with a failure hook has at most {most} characters: {kind!r}")
            hooks.append(Route(replace(hook, kinds=failed, call=partial(_of_ended, hook.call)), every))
        tried = [*own, *hooks, *included]
        return [replace(route, handler=route.handler.within(self.middlewares)) for route in tried]

    def schedules(self) -> list[DeclaredSchedule]:
        """Return the declared schedules, those of included sets too."""
        found = {known.name: known for other in self.included for known in reversed(other.schedules())}
        return list((found | {known.name: known for known in self.own_schedules}).values())

    def _check_one_per_kind(self, handler: Handler) -> None:
        taken = {
            kind: known.handler.name
            for known in self.fallbacks
            for kind in known.handler.kinds
            if None in (versions := {known.handler.version, handler.version}) or len(versions) == 1
        }
        for kind in handler.kinds:
            if kind in taken or handler.kinds.count(kind) > 1:
                raise HandlersError(
                    f"two handlers for {kind!r}: {taken.get(kind, handler.name)} and {handler.name}; each needs a"
                    f" version of its own: version={FIRST!r} is that of runs that began without one"
                )

    def _check_reached(self) -> None:
        """Refuse a handler whose events are all taken by earlier ones."""
        taken: dict[str, str] = {}
        for route in (*self.routes, *self.fallbacks):
            handler = route.handler
            if taken.keys() >= set(handler.kinds):
                name, kind = handler.name, handler.kinds[0]
                raise HandlersError(f"handler {name} is never reached: {taken[kind]} takes every {kind!r}")
            if route.takes is every and handler.version is None:
                taken = dict.fromkeys(handler.kinds, handler.name) | taken


def _of_ended(call: Call, given: Given, context: Context) -> Awaitable[object]:
    """Call a failure hook with its job under the kind of the event that ended: so replies find their place."""
    event = copy(cast("Event", given))
    object.__setattr__(event, "kind", event.kind.removeprefix(FAILED))
    return call(event, context)


async def _unrouted(given: Given, ctx: Context) -> Complete:
    """Complete an event that no route took. People wait for what they clicked, so that is a warning."""
    event = cast("Event", given)
    if event.kind.startswith("slack.") and event.kind.removeprefix("slack.") in INTERACTIONS:
        ctx.log.warning("no route takes this event; it is completed", ids=ids(event))
    else:
        ctx.log.debug("no route takes this event; it is completed")
    if event.kind == SUBMISSION:
        await ctx.ack(REFUSED)
    return Complete(NO_ROUTE)


def fresh_variables() -> Variables:
    variables = copy_context()
    variables.run(CURRENT.set, None)
    return variables


def left_values(before: Variables) -> bool:
    """Return whether a handler has left values in the current task's context variables."""
    now = copy_context()
    try:
        if now == before:  # fast where nothing was set
            return False
    except Exception:  # noqa: BLE001, S110 - values compare themselves, by the handler's code
        pass
    return any(
        variable not in _OURS and before.get(variable, _NOTHING) is not value
        for variable, value in now.items()
    )
