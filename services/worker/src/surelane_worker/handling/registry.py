"""``Handlers``: what a team registers its functions with. Mistakes that can be seen at start are raised at start."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

from surelane.errors import SettingsError
from surelane.events import Event
from surelane_service.cron import CatchUp
from surelane_service.durations import parse_duration
from surelane_worker.handling.context import Context
from surelane_worker.handling.handler import Call, Given, Handler, Middleware, threaded, wrapped
from surelane_worker.handling.outcomes import Pause
from surelane_worker.handling.schedule import Schedule

OnEvent = TypeVar("OnEvent", bound=Callable[[Event, Context], Any])
OnGroup = TypeVar("OnGroup", bound=Callable[[list[Event], Context], Any])
OnMiddleware = TypeVar("OnMiddleware", bound=Middleware)


class HandlersError(SettingsError):
    """The handlers cannot be used."""


class Handlers:
    """A set of handlers, one a kind.

    >>> handlers = Handlers()
    >>> @handlers.on("slack.app_mention", "slack.message.im", timeout="2m", concurrency=4)
    ... async def answer(event: Event, ctx: Context) -> None:
    ...     await ctx.slack.reply(event, "hello")
    """

    def __init__(self) -> None:
        self._registered: list[Handler] = []
        self._middlewares: list[Middleware] = []
        self._schedules: list[Schedule] = []
        self._included: list[Handlers] = []

    def on(
        self, *kinds: str, timeout: Pause | None = None, concurrency: int | None = None
    ) -> Callable[[OnEvent], OnEvent]:
        """Registers a function ``(event, ctx)``, async or not, for each event of ``kinds``.

        Events of one entity come one after another, in order.

        Args:
            kinds: such as ``slack.app_mention``; each may have one handler.
            timeout: how long an attempt may take; it then counts as failed.
            concurrency: how many of these kinds, together, run at once in one worker.

        Raises:
            HandlersError: a kind has a handler already, or the function or a bound is wrong.
        """

        def register(function: OnEvent) -> OnEvent:
            self._register(function, kinds, grouped=False, timeout=timeout, concurrency=concurrency)
            return function

        return register

    def on_group(
        self, *kinds: str, timeout: Pause | None = None, concurrency: int | None = None
    ) -> Callable[[OnGroup], OnGroup]:
        """Registers a function ``(events, ctx)`` that gets all waiting events of an entity at once, in order.

        Its outcome is that of every event given. An event of no entity comes alone, in a list of one.

        Raises:
            HandlersError: as for :meth:`on`.
        """

        def register(function: OnGroup) -> OnGroup:
            self._register(function, kinds, grouped=True, timeout=timeout, concurrency=concurrency)
            return function

        return register

    def middleware(self, function: OnMiddleware) -> OnMiddleware:
        """Registers ``async (event_or_events, ctx, call_next)`` around every handler; the first one is outermost.

        Raises:
            HandlersError: it is not a coroutine function of three arguments.
        """
        if not _is_async(function) or not _takes(function, 3):
            raise HandlersError(f"middleware {_name(function)} must be: async def (event, ctx, call_next)")
        self._middlewares.append(function)
        return function

    def cron(
        self,
        name: str,
        schedule: str,
        *,
        kind: str,
        payload: Mapping[str, Any] | None = None,
        time_zone: str = "UTC",
        catch_up: CatchUp = "one",
    ) -> None:
        """Declares a named schedule: workers create it, or change it to this, when they start.

        Args:
            name: what it is known by; an operator may pause or delete it by this name.
            schedule: five cron fields, such as ``*/5 * * * *``.
            kind: the kind of the job that each firing enqueues.
            payload: what the job carries, besides ``cron`` (the name) and ``scheduled_at``.
            time_zone: what the fields are read in, such as ``Europe/Berlin``.
            catch_up: of the times missed while no worker ran, fires ``none``, ``one`` (the last) or ``all``.

        Raises:
            HandlersError: it cannot be read, or the name is taken.
        """
        if any(known.name == name for known in self._schedules):
            raise HandlersError(f"two schedules are called {name!r}")
        try:
            self._schedules.append(Schedule(name, schedule, kind, dict(payload or {}), time_zone, catch_up))
        except ValueError as error:
            raise HandlersError(f"schedule {name!r}: {error}") from None

    def include(self, other: "Handlers") -> None:
        """Adds another set's handlers and schedules. For a kind or a name that both have, this one's stand."""
        self._included.append(other)

    def all(self) -> list[Handler]:
        """The handlers inside their middleware, those of included sets last."""
        handlers = list(self._registered)
        taken = {kind for handler in handlers for kind in handler.kinds}
        for handler in [handler for other in self._included for handler in other.all()]:
            kinds = tuple(kind for kind in handler.kinds if kind not in taken)
            taken.update(kinds)
            if kinds:
                handlers.append(replace(handler, kinds=kinds))
        return [replace(handler, call=wrapped(handler.call, self._middlewares)) for handler in handlers]

    def schedules(self) -> list[Schedule]:
        """The declared schedules."""
        found = {known.name: known for other in self._included for known in reversed(other.schedules())}
        return list((found | {known.name: known for known in self._schedules}).values())

    def _register(
        self,
        function: Callable[..., Any],
        kinds: tuple[str, ...],
        *,
        grouped: bool,
        timeout: Pause | None,
        concurrency: int | None,
    ) -> None:
        name = _name(function)
        self._check(name, function, kinds, grouped)
        if concurrency is not None and concurrency < 1:
            raise HandlersError(f"handler {name}: concurrency must be at least 1, not {concurrency}")
        call = (
            cast("Call", function)
            if _is_async(function)
            else threaded(cast("Callable[[Given, Context], object]", function))
        )
        self._registered.append(Handler(name, kinds, call, grouped, _seconds(name, timeout), concurrency))

    def _check(self, name: str, function: Callable[..., Any], kinds: tuple[str, ...], grouped: bool) -> None:
        first = "events" if grouped else "event"
        if not kinds or not all(kind and kind.isprintable() for kind in kinds):
            raise HandlersError(f"handler {name}: name the kinds it takes, such as 'slack.app_mention'")
        if not _takes(function, 2):
            raise HandlersError(f"handler {name} must take two arguments: ({first}, ctx)")
        taken = {kind: handler.name for handler in self._registered for kind in handler.kinds}
        for position, kind in enumerate(kinds):
            if kind in taken or kind in kinds[:position]:
                raise HandlersError(f"two handlers for {kind!r}: {taken.get(kind, name)} and {name}")


def _name(function: object) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


def _is_async(function: Callable[..., Any]) -> bool:
    """Whether it is a coroutine function, or an object that is called like one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _takes(function: Callable[..., Any], count: int) -> bool:
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
