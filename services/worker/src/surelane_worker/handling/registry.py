"""Register handlers and schedules, and load the set that ``SURELANE_HANDLERS`` names.

Every mistake that can be seen at start is raised at start.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from surelane.errors import SettingsError
from surelane.events import Event
from surelane_service.cron import CatchUp, Cron
from surelane_service.durations import parse_duration
from surelane_worker.handling.handler import Call, Context, Given, Handler, Middleware, threaded, wrapped
from surelane_worker.handling.outcomes import Pause

SETTING = "SURELANE_HANDLERS"

OnEvent = TypeVar("OnEvent", bound=Callable[[Event, Context], Any])
OnGroup = TypeVar("OnGroup", bound=Callable[[list[Event], Context], Any])
OnMiddleware = TypeVar("OnMiddleware", bound=Middleware)


class HandlersError(SettingsError):
    """The handlers cannot be used."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A named schedule, created or changed when a worker starts; see :meth:`Handlers.cron` for its fields.

    Raises:
        ValueError: the cron fields or the time zone cannot be read.
    """

    name: str
    schedule: str
    kind: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    time_zone: str = "UTC"
    catch_up: CatchUp = "one"

    def __post_init__(self) -> None:
        Cron(self.schedule, self.time_zone)


class Handlers:
    """A set of handlers, one per kind.

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
        """Register a function ``(event, ctx)``, async or not, for each event of ``kinds``.

        Events of one group are handled one after another, in order.

        Args:
            kinds: such as ``slack.app_mention``. Each kind has one handler.
            timeout: how long an attempt may take. A longer one fails.
            concurrency: how many events of these kinds, taken together, run at once in one worker.

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
        """Register a function ``(events, ctx)`` that gets all waiting events of a group at once, in order.

        Its outcome applies to every event it got. An event without a group comes in a list of one.

        Raises:
            HandlersError: as for :meth:`on`.
        """

        def register(function: OnGroup) -> OnGroup:
            self._register(function, kinds, grouped=True, timeout=timeout, concurrency=concurrency)
            return function

        return register

    def middleware(self, function: OnMiddleware) -> OnMiddleware:
        """Register ``async (event_or_events, ctx, call_next)`` around every handler. The first one is outermost.

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
        """Declare a named schedule. Starting workers create it, or change it to this declaration.

        Args:
            name: its unique name, by which an operator may pause or delete it.
            schedule: five cron fields, such as ``*/5 * * * *``.
            kind: the kind of the job that each firing enqueues.
            payload: the job's payload; ``cron`` (the name) and ``scheduled_at`` are added to it.
            time_zone: the time zone of the fields, such as ``Europe/Berlin``.
            catch_up: which times missed while no worker ran are fired: ``none``, ``one`` (the last) or ``all``.

        Raises:
            HandlersError: the schedule cannot be read, or the name is taken.
        """
        if any(known.name == name for known in self._schedules):
            raise HandlersError(f"two schedules are called {name!r}")
        try:
            self._schedules.append(Schedule(name, schedule, kind, dict(payload or {}), time_zone, catch_up))
        except ValueError as error:
            raise HandlersError(f"schedule {name!r}: {error}") from None

    def include(self, other: "Handlers") -> None:
        """Add the handlers and schedules of another set. This set's own take precedence by kind and by name."""
        self._included.append(other)

    def all(self) -> list[Handler]:
        """Return the handlers inside their middleware, those of included sets last."""
        handlers = list(self._registered)
        taken = {kind for handler in handlers for kind in handler.kinds}
        for handler in [handler for other in self._included for handler in other.all()]:
            kinds = tuple(kind for kind in handler.kinds if kind not in taken)
            taken.update(kinds)
            if kinds:
                handlers.append(replace(handler, kinds=kinds))
        return [replace(handler, call=wrapped(handler.call, self._middlewares)) for handler in handlers]

    def schedules(self) -> list[Schedule]:
        """Return the declared schedules, those of included sets too."""
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


def load_handlers(path: str) -> Handlers:
    """Import ``module:attribute``. Modules are found in the working directory too.

    Raises:
        HandlersError: it does not name a :class:`Handlers` with at least one handler, or the import failed.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise HandlersError(f"{SETTING}={path!r}: write module:attribute, such as my_bot:handlers")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except HandlersError:
        raise
    except Exception as error:
        raise HandlersError(
            f"{SETTING}: cannot import {module_name}: {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, attribute, None)
    if found is None:
        raise HandlersError(f"{SETTING}: {module_name} has no attribute {attribute!r}")
    if not isinstance(found, Handlers):
        raise HandlersError(f"{SETTING}: {path} is a {type(found).__name__}, not a surelane_worker.Handlers")
    if not found.all():
        raise HandlersError(f"{SETTING}: {path} has no handlers: register one with @handlers.on(...)")
    return found


def _name(function: object) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


def _is_async(function: Callable[..., Any]) -> bool:
    """Return whether it is a coroutine function, or an object whose call is one."""
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
