"""Register handlers and schedules.

Every mistake that can be seen at start is raised at start.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, get_args

from surelane.events import Event
from surelane.jobs import Priority
from surelane_service.cron import CatchUp, Cron
from surelane_worker.handling import routes
from surelane_worker.handling.context import Context
from surelane_worker.handling.handler import (
    Handler,
    HandlersError,
    Middleware,
    Route,
    handler_of,
    is_async,
    name_of,
    routed,
    takes_arguments,
)
from surelane_worker.handling.limit import Limit
from surelane_worker.handling.outcomes import Pause
from surelane_worker.handling.routes import Sort, Takes, Wanted, every

OnEvent = TypeVar("OnEvent", bound=Callable[[Event, Context], Any])
OnGroup = TypeVar("OnGroup", bound=Callable[[list[Event], Context], Any])
OnFunction = TypeVar("OnFunction", bound=Callable[..., Any])
OnMiddleware = TypeVar("OnMiddleware", bound=Middleware)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A named schedule, created or changed when a worker starts; see :meth:`Handlers.cron` for its fields.

    Raises:
        ValueError: the cron fields, the time zone or the priority cannot be used.
    """

    name: str
    schedule: str
    kind: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    time_zone: str = "UTC"
    catch_up: CatchUp = "one"
    priority: Priority = 1

    def __post_init__(self) -> None:
        Cron(self.schedule, self.time_zone)
        if self.priority not in get_args(Priority):
            raise ValueError(f"priority is 0, 1, 2 or 3, not {self.priority!r}")


class Handlers:
    """A set of handlers: routes, which are tried in the order of their registration, then one handler per kind.

    >>> handlers = Handlers()
    >>> @handlers.on("slack.app_mention", "slack.message.im", timeout="2m", concurrency=4)
    ... async def answer(event: Event, ctx: Context) -> None:
    ...     await ctx.slack.reply(event, "hello")
    """

    def __init__(self) -> None:
        self._routes: list[Route] = []
        self._fallbacks: list[Route] = []
        self._middlewares: list[Middleware] = []
        self._schedules: list[Schedule] = []
        self._included: list[Handlers] = []

    def on(
        self,
        *kinds: str,
        timeout: Pause | None = None,
        concurrency: int | None = None,
        answers: bool = False,
        ordered: bool = False,
        limit: Limit | None = None,
    ) -> Callable[[OnEvent], OnEvent]:
        """Register a function ``(event, ctx)``, async or not, for each event of ``kinds``.

        Events of one group are handled one after another, in order.

        Args:
            kinds: such as ``slack.app_mention``. Each kind has one handler.
            timeout: how long an attempt may take. A longer one fails.
            concurrency: how many events of these kinds, taken together, run at once in one worker.
            answers: of commands and interactions: whether the function calls ``ctx.ack``. Without it, Slack's request
                is answered when the event is claimed.
            ordered: of commands and interactions: whether they wait for their turn in their thread, in the slots of
                all other events. Without it, they wait for no other event, and have slots of their own.
            limit: how many events of each of these kinds run at once, or begin in a period, in all workers.

        Raises:
            HandlersError: a kind has a handler already, or the function or a bound is wrong.
        """
        return self._registering(
            kinds, timeout=timeout, concurrency=concurrency, answers=answers, ordered=ordered, limit=limit
        )

    def on_group(
        self,
        *kinds: str,
        timeout: Pause | None = None,
        concurrency: int | None = None,
        limit: Limit | None = None,
    ) -> Callable[[OnGroup], OnGroup]:
        """Register a function ``(events, ctx)`` that gets all waiting events of a group at once, in order.

        Its outcome applies to every event it got. An event without a group comes in a list of one.

        Raises:
            HandlersError: as for :meth:`on`.
        """

        return self._registering(kinds, grouped=True, timeout=timeout, concurrency=concurrency, limit=limit)

    def event(
        self,
        *types: Wanted,
        timeout: Pause | None = None,
        concurrency: int | None = None,
        limit: Limit | None = None,
    ) -> Callable[[OnEvent], OnEvent]:
        """Register a function for events of Slack's Events API, by the names of their subscriptions.

        Args:
            types: ``app_mention``, ``message.im``, or ``message`` for all messages. A compiled pattern stands for
                the types that Slack documents.
            timeout: as for :meth:`on`.
            concurrency: as for :meth:`on`.
            limit: as for :meth:`on`.

        Raises:
            HandlersError: an earlier route takes all of them, or as for :meth:`on`.
        """
        kinds = _named("event", routes.event_kinds, types)
        return self._registering(kinds, takes=every, timeout=timeout, concurrency=concurrency, limit=limit)

    def command(
        self,
        *names: str,
        timeout: Pause | None = None,
        concurrency: int | None = None,
        answers: bool = False,
        ordered: bool = False,
        limit: Limit | None = None,
    ) -> Callable[[OnEvent], OnEvent]:
        """Register a function for slash commands, such as ``/deploy``.

        Args:
            names: the commands.
            timeout: as for :meth:`on`.
            concurrency: as for :meth:`on`.
            answers: as for :meth:`on`.
            ordered: as for :meth:`on`.

        Raises:
            HandlersError: a name is a pattern, or as for :meth:`event`.
        """
        kinds = _named("command", routes.command_kinds, names)
        return self._registering(
            kinds,
            takes=every,
            timeout=timeout,
            concurrency=concurrency,
            answers=answers,
            ordered=ordered,
            limit=limit,
        )

    def message(
        self, *wanted: Wanted, timeout: Pause | None = None, concurrency: int | None = None
    ) -> Callable[[OnEvent], OnEvent]:
        """Register a function for messages whose text contains one of these strings or patterns; none: all messages.

        Args:
            wanted: strings, which are compared as they are, and compiled patterns.
            timeout: as for :meth:`on`.
            concurrency: only without ``wanted``, as for all routes: a worker claims whole kinds.

        Raises:
            HandlersError: an earlier route takes them all, or the function or a bound is wrong.
        """
        return self._routing(routes.MESSAGE, wanted, timeout, concurrency)

    def action(
        self,
        *action_ids: Wanted,
        timeout: Pause | None = None,
        concurrency: int | None = None,
        answers: bool = False,
        ordered: bool = False,
    ) -> Callable[[OnEvent], OnEvent]:
        """Register a function for buttons and menus with one of these ``action_id``; see :meth:`message`.

        Args:
            action_ids: strings, which must be equal, and compiled patterns.
            timeout: as for :meth:`on`.
            concurrency: only without ``action_ids``.
            answers: as for :meth:`on`.
            ordered: as for :meth:`on`; only without ``action_ids``: the database knows kinds alone.

        Raises:
            HandlersError: as for :meth:`message`.
        """
        return self._routing(
            routes.ACTION, action_ids, timeout, concurrency, answers=answers, ordered=ordered
        )

    def view(
        self,
        *callback_ids: Wanted,
        timeout: Pause | None = None,
        concurrency: int | None = None,
        answers: bool = False,
        ordered: bool = False,
    ) -> Callable[[OnEvent], OnEvent]:
        """Register a function for submitted modals with one of these ``callback_id``; see :meth:`action`."""
        return self._routing(
            routes.VIEW, callback_ids, timeout, concurrency, answers=answers, ordered=ordered
        )

    def view_closed(
        self,
        *callback_ids: Wanted,
        timeout: Pause | None = None,
        concurrency: int | None = None,
        answers: bool = False,
        ordered: bool = False,
    ) -> Callable[[OnEvent], OnEvent]:
        """Register a function for closed modals with one of these ``callback_id``; see :meth:`action`.

        Slack reports the closing of modals that were opened with ``notify_on_close``.
        """
        return self._routing(
            routes.VIEW_CLOSED, callback_ids, timeout, concurrency, answers=answers, ordered=ordered
        )

    def shortcut(
        self,
        *callback_ids: Wanted,
        timeout: Pause | None = None,
        concurrency: int | None = None,
        answers: bool = False,
        ordered: bool = False,
    ) -> Callable[[OnEvent], OnEvent]:
        """Register a function for shortcuts, global or of a message, by ``callback_id``; see :meth:`action`."""
        return self._routing(
            routes.SHORTCUT, callback_ids, timeout, concurrency, answers=answers, ordered=ordered
        )

    def options(
        self,
        *action_ids: Wanted,
        timeout: Pause | None = None,
        concurrency: int | None = None,
        answers: bool = True,
        ordered: bool = False,
    ) -> Callable[[OnEvent], OnEvent]:
        """Register a function for menus that ask for their options, by ``action_id``; see :meth:`action`.

        The function answers with ``await ctx.ack(options=…)``, unless ``answers`` is false.
        """
        return self._routing(
            routes.OPTIONS, action_ids, timeout, concurrency, answers=answers, ordered=ordered
        )

    def middleware(self, function: OnMiddleware) -> OnMiddleware:
        """Register ``async (event_or_events, ctx, call_next)`` around every handler. The first one is outermost.

        Raises:
            HandlersError: it is not a coroutine function of three arguments.
        """
        if not is_async(function) or not takes_arguments(function, 3):
            raise HandlersError(f"middleware {name_of(function)} must be: async def (event, ctx, call_next)")
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
        priority: Priority = 1,
    ) -> None:
        """Declare a named schedule. Starting workers create it, or change it to this declaration.

        Args:
            name: its unique name, by which an operator may pause or delete it.
            schedule: five cron fields, such as ``*/5 * * * *``.
            kind: the kind of the job that each firing enqueues.
            payload: the job's payload; ``cron`` (the name) and ``scheduled_at`` are added to it.
            time_zone: the time zone of the fields, such as ``Europe/Berlin``.
            catch_up: which times missed while no worker ran are fired: ``none``, ``one`` (the last) or ``all``.
            priority: of the jobs: 0 runs first, 3 last.

        Raises:
            HandlersError: the schedule cannot be used, or the name is taken.
        """
        if any(known.name == name for known in self._schedules):
            raise HandlersError(f"two schedules are called {name!r}")
        try:
            self._schedules.append(
                Schedule(name, schedule, kind, dict(payload or {}), time_zone, catch_up, priority)
            )
        except ValueError as error:
            raise HandlersError(f"schedule {name!r}: {error}") from None

    def include(self, other: "Handlers") -> None:
        """Add the handlers and schedules of another set.

        This set's own handlers come first: its routes, then its handlers per kind, then the other set's. Of two
        schedules of one name, this set's counts.
        """
        self._included.append(other)

    def all(self) -> list[Handler]:
        """Return one handler for each kind, with the routes that come before it.

        One for both commands or interactions and other events is there twice.

        Raises:
            HandlersError: routes come before a handler of groups.
        """
        tried = self.tried()
        last: dict[str, Route | None] = {kind: None for route in tried for kind in route.handler.kinds}
        for route in reversed([route for route in tried if route.takes is every]):
            last.update(dict.fromkeys(route.handler.kinds, route))
        alike: dict[tuple[Route | None, bool], list[str]] = {}
        for kind, end in last.items():
            alike.setdefault((end, routes.is_interactive(kind)), []).append(kind)
        return [
            replace(routed(tried, end, tuple(kinds)), waits=waits) for (end, waits), kinds in alike.items()
        ]

    def tried(self) -> list[Route]:
        """Return all routes inside their middleware, in the order in which they are tried."""
        tried = [*self._routes, *self._fallbacks]
        tried += [route for other in self._included for route in other.tried()]
        return [replace(route, handler=route.handler.within(self._middlewares)) for route in tried]

    def schedules(self) -> list[Schedule]:
        """Return the declared schedules, those of included sets too."""
        found = {known.name: known for other in self._included for known in reversed(other.schedules())}
        return list((found | {known.name: known for known in self._schedules}).values())

    def _routing(
        self,
        sort: Sort,
        wanted: tuple[Wanted, ...],
        timeout: Pause | None,
        concurrency: int | None,
        *,
        answers: bool = False,
        ordered: bool = False,
    ) -> Callable[[OnEvent], OnEvent]:
        takes = sort.takes(wanted)
        if concurrency is not None and takes is not every:
            raise HandlersError(
                f"concurrency={concurrency}: a worker claims {sort.kinds[0]!r} as a whole, so a route within it "
                "cannot have a bound of its own; give the bound to handlers.on(kind)"
            )
        if ordered and takes is not every:
            raise HandlersError(
                f"ordered=True: all {sort.kinds[0]!r} are in order, or none; give the order to handlers.on(kind)"
            )
        return self._registering(
            sort.kinds,
            takes=takes,
            timeout=timeout,
            concurrency=concurrency,
            answers=answers,
            ordered=ordered,
        )

    def _registering(
        self,
        kinds: tuple[str, ...],
        *,
        takes: Takes | None = None,
        grouped: bool = False,
        timeout: Pause | None,
        concurrency: int | None,
        answers: bool = False,
        ordered: bool = False,
        limit: Limit | None = None,
    ) -> Callable[[OnFunction], OnFunction]:
        """Return a decorator that registers a route, or without ``takes`` the handler of whole kinds."""

        def register(function: OnFunction) -> OnFunction:
            handler = handler_of(
                function,
                kinds,
                timeout,
                concurrency,
                grouped=grouped,
                answers=answers,
                ordered=ordered,
                limit=limit,
            )
            if takes is None:
                self._check_one_per_kind(handler)
                self._fallbacks.append(Route(handler, every))
            else:
                self._routes.append(Route(handler, takes))
            self._check_reached()
            return function

        return register

    def _check_one_per_kind(self, handler: Handler) -> None:
        taken = {kind: known.handler.name for known in self._fallbacks for kind in known.handler.kinds}
        for position, kind in enumerate(handler.kinds):
            if kind in taken or kind in handler.kinds[:position]:
                raise HandlersError(
                    f"two handlers for {kind!r}: {taken.get(kind, handler.name)} and {handler.name}"
                )

    def _check_reached(self) -> None:
        """Refuse a handler whose events are all taken by earlier ones."""
        taken: dict[str, str] = {}
        for route in (*self._routes, *self._fallbacks):
            handler = route.handler
            if taken.keys() >= set(handler.kinds):
                kind = handler.kinds[0]
                raise HandlersError(
                    f"handler {handler.name} is never reached: {taken[kind]} takes every {kind!r}"
                )
            if route.takes is every:
                taken = dict.fromkeys(handler.kinds, handler.name) | taken


def _named(
    sort: str, kinds_of: Callable[[tuple[Any, ...]], Iterable[str]], names: tuple[Any, ...]
) -> tuple[str, ...]:
    """Return the kinds that names or patterns stand for, each once."""
    if not all(names) or not names:
        raise HandlersError(f"handlers.{sort}(…): name what it takes")
    try:
        return tuple(dict.fromkeys(kinds_of(names)))
    except ValueError as error:
        raise HandlersError(f"handlers.{sort}(…): {error}") from None
