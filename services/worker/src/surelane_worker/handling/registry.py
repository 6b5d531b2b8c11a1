"""Register handlers and schedules.

Every mistake that can be seen at start is raised at start.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, Unpack, overload

from surelane.events import Event
from surelane.jobs import Priority
from surelane_service.cron import CatchUp, Overlap
from surelane_worker.handling import routes
from surelane_worker.handling.bounds import Bounds, KindBounds, OnBounds, RouteBounds
from surelane_worker.handling.context import Context
from surelane_worker.handling.handler import (
    DeclaredSchedule,
    HandlersError,
    HandlerSet,
    Middleware,
    handler_of,
    is_async,
    name_of,
    takes_arguments,
)
from surelane_worker.handling.outcomes import Pause
from surelane_worker.handling.routes import Sort, Takes, Wanted, every

OnEvent = TypeVar("OnEvent", bound=Callable[[Event, Context], Any] | Callable[[Event, Context, Any], Any])
OnGroup = TypeVar("OnGroup", bound=Callable[[list[Event], Context], Any])
OnFunction = TypeVar("OnFunction", bound=Callable[..., Any])
OnMiddleware = TypeVar("OnMiddleware", bound=Middleware)


class Handlers:
    """A set of handlers: routes, which are tried in the order of their registration, then one handler per kind.

    >>> handlers = Handlers()
    >>> @handlers.on("slack.app_mention", "slack.message.im", timeout="2m", concurrency=4)
    ... async def answer(event: Event, ctx: Context) -> None:
    ...     await ctx.slack.reply(event, "hello")
    """

    def __init__(self) -> None:
        self._registered = HandlerSet()

    @overload
    def on(
        self, *kinds: str, answers: bool = False, ordered: bool = False, **bounds: Unpack[OnBounds]
    ) -> Callable[[OnEvent], OnEvent]: ...

    @overload
    def on(
        self, *kinds: str, debounce: Pause, max_wait: Pause | None = None, **bounds: Unpack[OnBounds]
    ) -> Callable[[OnGroup], OnGroup]: ...

    def on(self, *kinds: str, **bounds: Unpack[Bounds]) -> Callable[[Any], Any]:
        """Register a function ``(event, ctx)``, async or not, for each event of ``kinds``.

        It may take the payload as a third argument, annotated with its type: a pydantic model, a ``TypedDict``, a
        dataclass. A payload that does not fit fails the event at once.

        Events of one group are handled one after another, in order. With ``debounce`` the function is
        ``(events, ctx)``: it gets a list of the events that came in quick succession.

        Args:
            kinds: such as ``slack.app_mention``. Each kind has one handler.
            debounce: how long no further event of the group comes before a run begins. One run handles all that came.
            max_wait: how long the first of them waits at most; five times ``debounce`` by default.
            timeout: how long an attempt may take. A longer one fails.
            concurrency: how many events of these kinds, taken together, run at once in one worker.
            max_attempts: how many attempts an event has that has no maximum of its own; by default
                ``SURELANE_MAX_ATTEMPTS``. An attempt that stored a new step or wait does not count against later ones.
            backoff: the pause after the first attempt; by default ``SURELANE_BACKOFF_BASE``. The second pause is four
                times as long, the third nine times, and none is longer than an hour or the first.
            answers: of commands and interactions: whether the function calls ``ctx.ack``. Without it, Slack's request
                is answered when the event is claimed.
            ordered: of commands and interactions: whether they wait for their turn in their thread, in the slots of
                all other events. Without it, they wait for no other event, and have slots of their own.
            limit: how many events of each of these kinds run at once, or begin in a period, in all workers.
            version: the version of the code, as numbers: ``"2"``. Events whose runs began under another version go to
                the function that is registered for it, or to workers that have it. Of several versions the greatest
                takes new events, and its other bounds hold for all. Without a version it is version 1.

        Raises:
            HandlersError: a kind has a handler already, or the function or a bound is wrong.
        """
        _check_names(bounds, Bounds)
        return self._registering(kinds, grouped=bounds.get("debounce") is not None, **bounds)

    def on_group(self, *kinds: str, **bounds: Unpack[KindBounds]) -> Callable[[OnGroup], OnGroup]:
        """Register a function ``(events, ctx)`` that gets all waiting events of a group at once, in order.

        Its outcome applies to every event it got. An event without a group comes in a list of one.

        Raises:
            HandlersError: as for :meth:`on`.
        """
        _check_names(bounds, KindBounds)
        return self._registering(kinds, grouped=True, **bounds)

    def event(self, *types: Wanted, **bounds: Unpack[KindBounds]) -> Callable[[OnEvent], OnEvent]:
        """Register a function for events of Slack's Events API, by the names of their subscriptions.

        Args:
            types: ``app_mention``, ``message.im``, or ``message`` for all messages. A compiled pattern stands for
                the types that Slack documents.
            timeout, concurrency, limit: as for :meth:`on`.

        Raises:
            HandlersError: an earlier route takes all of them, or as for :meth:`on`.
        """
        _check_names(bounds, KindBounds)
        kinds = _named("event", routes.event_kinds, types)
        return self._registering(kinds, every, **bounds)

    def command(
        self, *names: str, answers: bool = False, ordered: bool = False, **bounds: Unpack[KindBounds]
    ) -> Callable[[OnEvent], OnEvent]:
        """Register a function for slash commands, such as ``/deploy``. The bounds are as for :meth:`on`.

        Raises:
            HandlersError: a name is a pattern, or as for :meth:`event`.
        """
        _check_names(bounds, KindBounds)
        kinds = _named("command", routes.command_kinds, names)
        return self._registering(kinds, every, answers=answers, ordered=ordered, **bounds)

    def message(
        self, *wanted: Wanted, timeout: Pause | None = None, concurrency: int | None = None
    ) -> Callable[[OnEvent], OnEvent]:
        """Register a function for messages whose text contains one of these strings or patterns; none: all messages.

        Args:
            wanted: strings, which are compared as they are, and compiled patterns.
            timeout, concurrency: as for :meth:`on`; concurrency only without ``wanted``, as for all routes: a worker
                claims whole kinds.

        Raises:
            HandlersError: an earlier route takes them all, or the function or a bound is wrong.
        """
        return self._routing(routes.MESSAGE, wanted, timeout=timeout, concurrency=concurrency)

    def mention(
        self, *wanted: Wanted, timeout: Pause | None = None, concurrency: int | None = None
    ) -> Callable[[OnEvent], OnEvent]:
        """Register a function for mentions of the bot, by the text behind its name; see :meth:`message`.

        ``event.match`` is where a compiled pattern was found, with its groups.
        """
        return self._routing(routes.MENTION, wanted, timeout=timeout, concurrency=concurrency)

    def edited(self, *wanted: Wanted, timeout: Pause | None = None) -> Callable[[OnEvent], OnEvent]:
        """Register a function for messages that a person edited, by their new text; see :meth:`message`.

        It runs at once, also while the message itself is handled.
        """
        return self._routing(routes.EDITED, wanted, timeout=timeout)

    def deleted(self, *wanted: Wanted, timeout: Pause | None = None) -> Callable[[OnEvent], OnEvent]:
        """Register a function for messages that a person deleted, by their text; see :meth:`edited`."""
        return self._routing(routes.DELETED, wanted, timeout=timeout)

    def link(self, *domains: Wanted, timeout: Pause | None = None) -> Callable[[OnEvent], OnEvent]:
        """Register a function for messages with a link to one of these domains; see :meth:`action`.

        It shows the links by ``ctx.slack.client.chat_unfurl``, and runs at once.
        """
        return self._routing(routes.LINKS, domains, timeout=timeout)

    def entity(self, *names: Wanted, timeout: Pause | None = None) -> Callable[[OnEvent], OnEvent]:
        """Register a function for clicks on a Work Object, by its ``external_ref`` type or its link's domain.

        It answers by ``ctx.slack.client.entity_presentDetails``, and runs at once; see :meth:`link`.
        """
        return self._routing(routes.ENTITIES, names, timeout=timeout)

    def action(self, *action_ids: Wanted, **bounds: Unpack[RouteBounds]) -> Callable[[OnEvent], OnEvent]:
        """Register a function for buttons and menus with one of these ``action_id``; see :meth:`message`.

        Args:
            action_ids: strings, which must be equal, and compiled patterns.
            timeout, answers, concurrency, ordered: as for :meth:`on`; the last two only without ``action_ids``.

        Raises:
            HandlersError: as for :meth:`message`.
        """
        return self._routing(routes.ACTION, action_ids, **bounds)

    def view(self, *callback_ids: Wanted, **bounds: Unpack[RouteBounds]) -> Callable[[OnEvent], OnEvent]:
        """Register a function for submitted modals with one of these ``callback_id``; see :meth:`action`."""
        return self._routing(routes.VIEW, callback_ids, **bounds)

    def view_closed(
        self, *callback_ids: Wanted, **bounds: Unpack[RouteBounds]
    ) -> Callable[[OnEvent], OnEvent]:
        """Register a function for closed modals with one of these ``callback_id``; see :meth:`action`.

        Slack reports the closing of modals that were opened with ``notify_on_close``.
        """
        return self._routing(routes.VIEW_CLOSED, callback_ids, **bounds)

    def shortcut(self, *callback_ids: Wanted, **bounds: Unpack[RouteBounds]) -> Callable[[OnEvent], OnEvent]:
        """Register a function for shortcuts, global or of a message, by ``callback_id``; see :meth:`action`."""
        return self._routing(routes.SHORTCUT, callback_ids, **bounds)

    def options(self, *action_ids: Wanted, **bounds: Unpack[RouteBounds]) -> Callable[[OnEvent], OnEvent]:
        """Register a function for menus that ask for their options, by ``action_id``; see :meth:`action`.

        The function answers with ``await ctx.ack(options=…)``, unless ``answers`` is false.
        """
        bounds.setdefault("answers", True)
        return self._routing(routes.OPTIONS, action_ids, **bounds)

    def middleware(self, function: OnMiddleware) -> OnMiddleware:
        """Register ``async (event_or_events, ctx, call_next)`` around every handler. The first one is outermost.

        Raises:
            HandlersError: it is not a coroutine function of three arguments.
        """
        if not is_async(function) or not takes_arguments(function, 3):
            raise HandlersError(f"middleware {name_of(function)} must be: async def (event, ctx, call_next)")
        self._registered.middlewares.append(function)
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
        overlap: Overlap = "allow",
        jitter: Pause = 0,
    ) -> None:
        """Declare a named schedule. Starting workers create it, or change it to this declaration.

        Args:
            name: its unique name, by which an operator may pause or delete it.
            schedule: five cron fields, such as ``*/5 * * * *``.
            kind: the kind of the job that each firing enqueues.
            payload: the job's payload; ``cron`` (the name) and ``scheduled_at`` are added to it.
            time_zone: the time zone of the fields, such as ``Europe/Berlin``.
            catch_up: which times missed while no worker ran are fired: ``none``, ``one`` (the last), so many of the
                last, or ``all``.
            priority: of the jobs: 0 runs first, 3 last.
            overlap: what a firing does while an earlier job of the schedule is live: ``allow`` stores its own,
                ``skip`` none, ``queue`` a job that waits for it. ``replace`` cancels the earlier job.
            jitter: how long after its time a firing comes, at most. All workers agree on each delay.

        Raises:
            HandlersError: the schedule cannot be used, or the name is taken.
        """
        if any(known.name == name for known in self._registered.own_schedules):
            raise HandlersError(f"two schedules are called {name!r}")
        given, options = dict(payload or {}), (time_zone, catch_up, priority, overlap, jitter)
        try:
            self._registered.own_schedules.append(DeclaredSchedule(name, schedule, kind, given, *options))
        except ValueError as error:
            raise HandlersError(f"schedule {name!r}: {error}") from None

    def on_failure(
        self, *kinds: str, timeout: Pause | None = None, concurrency: int | None = None
    ) -> Callable[[OnEvent], OnEvent]:
        """Register a function ``(event, ctx)`` for each event that ended failed or expired.

        It runs as a job of its own, which is stored as the event ends. ``event`` has the kind and the payload of the
        event that ended. ``event.payload["failure"]`` has its ``id``, ``key``, ``outcome``, ``reason`` and ``errors``.

        ``kinds`` are those of the events; none: all that this set has handlers for. ``timeout`` and ``concurrency`` are
        as for :meth:`on`, and so is what is raised.
        """

        def register(function: OnEvent) -> OnEvent:
            hook = handler_of(function, kinds or ("all",), timeout=timeout, concurrency=concurrency)
            self._registered.hooks.append((kinds, hook))
            return function

        return register

    def include(self, other: "Handlers") -> None:
        """Add another set's handlers, behind this set's own, and its schedules whose names this set does not use."""
        self._registered.included.append(registered_in(other))

    def _routing(
        self, sort: Sort, wanted: tuple[Wanted, ...], **bounds: Unpack[RouteBounds]
    ) -> Callable[[OnEvent], OnEvent]:
        _check_names(bounds, RouteBounds)
        takes, concurrency = sort.takes(wanted), bounds.get("concurrency")
        if takes is not every and concurrency is not None:
            raise HandlersError(
                f"concurrency={concurrency}: a worker claims {sort.kinds[0]!r} as a whole, so a route within it "
                "cannot have a bound of its own; give the bound to handlers.on(kind)"
            )
        if takes is not every and bounds.get("ordered"):
            raise HandlersError(
                f"ordered=True: all {sort.kinds[0]!r} are in order, or none; give the order to handlers.on(kind)"
            )
        return self._registering(sort.kinds, takes, **bounds)

    def _registering(
        self,
        kinds: tuple[str, ...],
        takes: Takes | None = None,
        *,
        grouped: bool = False,
        **bounds: Unpack[Bounds],
    ) -> Callable[[OnFunction], OnFunction]:
        """Return a decorator that registers a route, or without ``takes`` the handler of whole kinds."""

        def register(function: OnFunction) -> OnFunction:
            self._registered.add(handler_of(function, kinds, grouped=grouped, **bounds), takes)
            return function

        return register


def registered_in(handlers: Handlers) -> HandlerSet:
    """Return what a set has, for the worker."""
    return handlers._registered  # noqa: SLF001 - a team's editor shows what is documented


def _check_names(bounds: Mapping[str, object], known: type) -> None:
    """Raise :class:`TypeError` for a bound that is not one of the ``known``, a typed dictionary's."""
    if unknown := bounds.keys() - known.__annotations__.keys():
        raise TypeError(f"not a bound of such a handler: {', '.join(sorted(unknown))}")


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
