# ruff: noqa: ARG001 - a handler takes both arguments, used or not
"""Routes choose within a kind, in the order of their registration, and mistakes are raised at start."""

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from surelane_service.subscriptions import MESSAGES, unfollowed
from surelane_worker import Call, Context, Event, Given, Handlers
from surelane_worker.errors import HandlersError
from surelane_worker.handling.handler import NO_ROUTE, Handler
from surelane_worker.handling.registry import registered_in
from surelane_worker.wiring import warn_of_doubts, warn_of_untaken

NOW = datetime(2026, 1, 1, tzinfo=UTC)
Register = Callable[[Callable[[Event, Context], Any]], object]


def event(kind: str, payload: Mapping[str, Any]) -> Event:
    return Event(1, kind, NOW, 1, 1, NOW, json.dumps(payload))


def said(text: str | None, kind: str = "slack.message.im") -> Event:
    return event(kind, {"type": "event_callback", "event": {"type": "message", "text": text}})


def click(action_id: str) -> Event:
    return event("slack.block_actions", {"type": "block_actions", "actions": [{"action_id": action_id}]})


def view(callback_id: str, kind: str = "slack.view_submission") -> Event:
    return event(kind, {"type": kind, "view": {"callback_id": callback_id}})


def shortcut(callback_id: str, kind: str = "slack.shortcut") -> Event:
    return event(kind, {"type": kind, "callback_id": callback_id})


def named(name: str) -> Callable[[Event, Context], Any]:
    """Return a handler that answers its name."""

    async def handle(event: Event, ctx: Context) -> str:
        return name

    handle.__qualname__ = name
    return handle


def chosen(handlers: Handlers, given: Event) -> Handler:
    (handler,) = [each for each in registered_in(handlers).all() if given.kind in each.kinds]
    return handler.for_event(given)


def kinds_of(handlers: Handlers) -> set[str]:
    return {kind for handler in registered_in(handlers).all() for kind in handler.kinds}


async def answer(handlers: Handlers, given: Event) -> object:
    return await chosen(handlers, given).call(given, cast("Context", None))


async def test_each_route_takes_its_own() -> None:
    handlers = Handlers()
    sorts: list[tuple[Register, Event]] = [
        (handlers.event("app_mention"), event("slack.app_mention", {})),
        (handlers.event("message.groups"), said("any", "slack.message.groups")),
        (handlers.message("hello"), said("well, hello there")),
        (handlers.message(re.compile(r"^bye\b")), said("bye now", "slack.message.channels")),
        (handlers.command("/deploy", "rollback"), event("slack.command.deploy", {"command": "/deploy"})),
        (handlers.action("approve"), click("approve")),
        (handlers.action(re.compile(r"^vote-\d+$")), click("vote-17")),
        (handlers.view("ask"), view("ask")),
        (handlers.view_closed("ask"), view("ask", "slack.view_closed")),
        (handlers.shortcut("note"), shortcut("note")),
        (handlers.shortcut("keep"), shortcut("keep", "slack.message_action")),
        (handlers.options("city"), event("slack.block_suggestion", {"action_id": "city"})),
    ]
    for number, (register, _) in enumerate(sorts):
        register(named(str(number)))
    assert [await answer(handlers, given) for _, given in sorts] == [str(n) for n in range(len(sorts))]
    assert "slack.command.rollback" in kinds_of(handlers)


async def test_first_route_that_takes_an_event_gets_it_and_the_rest_goes_to_on() -> None:
    handlers = Handlers()
    handlers.on("slack.block_actions")(named("fallback"))
    handlers.action(re.compile("a"))(named("first"))
    handlers.action("approve")(named("second"))
    handlers.action("b")(named("third"))
    answers = [await answer(handlers, click(name)) for name in ("approve", "b", "c", "bb")]
    assert answers == ["first", "third", "fallback", "fallback"]
    handlers = Handlers()
    handlers.action("approve")(named("approve"))
    handlers.on("slack.block_actions")(named("fallback"))
    for actions in (None, [None, {}, {"action_id": 7}], "approve", {"action_id": "approve"}):
        assert await answer(handlers, event("slack.block_actions", {"actions": actions})) == "fallback"
    assert await answer(handlers, event("slack.block_actions", {})) == "fallback"
    assert await answer(handlers, click("approve")) == "approve"


def test_a_message_is_routed_by_what_its_author_typed() -> None:
    handlers = Handlers()
    handlers.message("amp")(named("amp"))
    handlers.message("R&D <plan>")(named("plan"))
    sent = said("where is the R&amp;D &lt;plan&gt;?")
    assert chosen(handlers, sent).name.endswith("plan")
    assert sent.text == "where is the R&D <plan>?"
    message: dict[str, Any] = {
        "type": "message",
        "subtype": "message_changed",
        "message": {"text": "a &lt; b"},
    }
    texts = {
        "slack.message_changed": message,
        "slack.command.ask": {"text": "c &gt; d"},
        "job": {"text": "&lt;"},
    }
    assert [event(kind, payload).text for kind, payload in texts.items()] == ["a < b", "c > d", "&lt;"]


def test_route_without_a_name_takes_every_event_and_a_pattern_those_that_slack_documents() -> None:
    handlers = Handlers()
    handlers.message("help")(named("help"))
    handlers.message(concurrency=2)(named("any"))
    assert chosen(handlers, said("help!")).name.endswith("help")
    assert chosen(handlers, said(None)).concurrency == 2
    assert kinds_of(handlers) == set(MESSAGES)
    handlers = Handlers()
    handlers.event("channel_rename")(named("rename"))
    handlers.event(re.compile("^channel_(rename|archive)$"), "message")(named("other"))
    kinds = {handler.name.rpartition(".")[2]: handler.kinds for handler in registered_in(handlers).all()}
    assert kinds == {"rename": ("slack.channel_rename",), "other": ("slack.channel_archive", *MESSAGES)}


def test_bounds_hold_per_route_and_once_for_a_handler_of_several_kinds() -> None:
    handlers = Handlers()
    handlers.action("slow", timeout="1m")(named("slow"))
    handlers.action("quick", timeout="1s")(named("quick"))
    handlers.on("slack.block_actions", concurrency=3)(named("fallback"))
    handlers.command("/deploy", concurrency=1)(named("deploy"))
    assert [chosen(handlers, click(name)).timeout for name in ("slow", "quick", "other")] == [60, 1, None]
    assert {handler.kinds: handler.concurrency for handler in registered_in(handlers).all()} == {
        ("slack.block_actions",): 3,
        ("slack.command.deploy",): 1,
    }
    handlers = Handlers()
    handlers.message("hello")(named("hello"))
    handlers.on("slack.message.im", "slack.app_mention", concurrency=2)(named("fallback"))
    bounds = {handler.kinds: handler.concurrency for handler in registered_in(handlers).all()}
    assert bounds[("slack.message.im", "slack.app_mention")] == 2
    assert len(bounds) == 2  # and the other messages, which have no fallback


@pytest.mark.parametrize(
    ("register", "message"),
    [
        (lambda h: h.command(re.compile("/deploy.*")), "name each command, such as '/deploy'"),
        (lambda h: h.event(re.compile("^nonsense$")), "is in no event type that Slack documents"),
        (lambda h: h.event(), "name what it takes"),
        (lambda h: h.command(""), "name what it takes"),
        (lambda h: h.action("a", concurrency=2), "worker claims 'slack.block_actions' as a whole"),
        (lambda h: h.action("a", timeout=0), "timeout must be positive"),
        (lambda h: h.action(concurrency=0), "concurrency must be at least 1"),
    ],
)
def test_mistakes_are_raised_at_registration(register: Callable[[Handlers], Register], message: str) -> None:
    with pytest.raises(HandlersError, match=message):
        register(Handlers())(named("wrong"))


def test_route_behind_one_that_takes_everything_or_before_a_handler_of_groups_is_refused() -> None:
    handlers = Handlers()
    handlers.action()(named("everything"))
    with pytest.raises(HandlersError, match=r"late is never reached: .*everything takes every"):
        handlers.action("late")(named("late"))
    handlers = Handlers()
    handlers.command("/deploy")(named("first"))
    with pytest.raises(HandlersError, match=r"second is never reached"):
        handlers.command("/deploy")(named("second"))
    handlers = Handlers()
    handlers.on("slack.app_mention")(named("fallback"))
    with pytest.raises(HandlersError, match=r"fallback is never reached"):
        handlers.event("app_mention")(named("route"))
    handlers = Handlers()

    @handlers.on_group("slack.message.im")
    async def together(events: list[Event], ctx: Context) -> None: ...

    handlers.message("hello")(named("hello"))
    with pytest.raises(HandlersError, match=r"together takes several events of 'slack.message.im'"):
        registered_in(handlers).all()


async def test_included_routes_come_after_ones_own_and_middleware_is_around_each() -> None:
    base, handlers, order = Handlers(), Handlers(), list[str]()

    async def noting(given: Given, ctx: Context, call_next: Call) -> object:
        order.append("middleware")
        return await call_next(given, ctx)

    base.message("hello", "help")(named("included route"))
    base.on("slack.message.im")(named("included fallback"))
    handlers.include(base)
    handlers.middleware(noting)
    handlers.message("hello")(named("own route"))
    answers = [await answer(handlers, said(text)) for text in ("hello", "help", "other")]
    assert answers == ["own route", "included route", "included fallback"]
    assert order == ["middleware"] * 3
    handlers = Handlers()
    base.message("hello")(named("included"))
    handlers.include(base)
    handlers.on("slack.message.im")(named("own"))
    assert await answer(handlers, said("hello")) == "own", "one's own handler of a kind comes before routes"
    assert await answer(handlers, said("hello", "slack.message.channels")) == "included route"


SET = ": add it there, or unset SURELANE_EVENT_TYPES where a manifest is known"
UNSUBSCRIBED = "the app's manifest does not subscribe to"


def doubts(*given: Any) -> dict[str, str]:
    with capture_logs() as logs:
        warn_of_doubts(*given)
    found = {line["kind"]: line["reason"] for line in logs}
    assert len(found) == len(logs), "each is named once"
    return found


def test_kinds_that_can_never_arrive_are_named_at_start() -> None:
    kinds = {
        *("slack.app_mentoin", "slack.reaction_added", "slack.app_mention", "agent-turn"),
        *("slack.block_actions", "slack.command.deploy", *MESSAGES),
    }
    assert doubts(kinds, {"app_mention", "message.im"}) == {
        "slack.app_mentoin": "Slack has no event type app_mentoin; did you mean app_mention?",
        "slack.reaction_added": f"SURELANE_EVENT_TYPES leaves out reaction_added{SET}",
    }
    assert list(doubts(MESSAGES, {"app_mention"})) == sorted(MESSAGES)
    kinds = {"slack.app_mention", "slack.reaction_added", "slack.team_join", "slack.message_changed", "mail"}
    taken, subscribed = {"app_mention", "reaction_added", "message.im"}, {"app_mention", "message.im"}
    assert doubts(kinds, taken, subscribed) == {
        "slack.reaction_added": f"{UNSUBSCRIBED} reaction_added; add below bot_events: - reaction_added",
        "slack.team_join": f"SURELANE_EVENT_TYPES leaves out team_join{SET}",
    }
    told = "no manifest is known, so ingest leaves out reaction_added; set SURELANE_EVENT_TYPES=app_mention,message.im,"
    kinds = {"slack.reaction_added", "slack.app_mention", "slack.message_changed"}
    assert doubts(kinds, None) == {"slack.reaction_added": f"{told}reaction_added"}
    told = f"{UNSUBSCRIBED} app_mention; add below bot_events: - app_mention"
    assert doubts(kinds, None, {"reaction_added", "message.im"}) == {"slack.app_mention": told}
    agents = {"slack.agent_session_stopped", "slack.message.channels", "slack.message.im"}
    assert unfollowed(agents, {"message.im"}) == [f"SURELANE_EVENT_TYPES leaves out message.channels{SET}"]
    assert unfollowed(agents, {"message.im", "message.channels"}) == []
    assert unfollowed(agents - {"slack.agent_session_stopped"}, {"message.im"}) == []
    told = "the app's manifest has no command /deploy; add below slash_commands: - command: /deploy"
    commands = {"slack.command.deploy", "slack.command.status"}
    assert doubts(commands, None, set(), {"/status"}) == {"slack.command.deploy": told}
    with capture_logs() as logs:
        warn_of_untaken({"slack.app_mention", "mail"}, {"app_mention", "reaction_added", "message_changed"})
    assert [(line["log_level"], line["type"]) for line in logs] == [("warning", "reaction_added")]


class _Lines:
    """A context with a logger only."""

    def __init__(self) -> None:
        self.log = self
        self.lines: list[tuple[str, object]] = []

    def warning(self, line: str, **fields: object) -> None:
        self.lines.append((line, fields.get("ids")))

    def debug(self, line: str) -> None:
        self.lines.append((line, "debug"))


async def test_event_without_a_route_is_completed_and_says_so() -> None:
    handlers = Handlers()
    handlers.action("approve")(named("approve"))
    handlers.message("hello")(named("hello"))
    context = _Lines()
    for given in (click("deny"), said("bye")):
        outcome = await chosen(handlers, given).call(given, cast("Context", context))
        assert cast("Any", outcome).result == NO_ROUTE
    line = "no route takes this event; it is completed"
    assert context.lines == [(line, ["deny"]), (line, "debug")]


def mentioned(text: str, **more: object) -> Event:
    inner = {"type": "app_mention", "text": text, **more}
    return event("slack.app_mention", {"type": "event_callback", "event": inner})


async def test_a_mention_goes_to_the_first_route_with_its_word_then_to_the_plain_handler() -> None:
    handlers = Handlers()
    handlers.on("slack.app_mention")(named("plain"))
    handlers.mention("deploy")(named("first"))
    handlers.mention("api", "deploy")(named("second"))
    assert await answer(handlers, mentioned("<@U1> deploy api")) == "first"
    assert await answer(handlers, mentioned("<@U1> show api")) == "second"
    assert await answer(handlers, mentioned("<@U1> hello")) == "plain"
    edited = {"user": "U2", "ts": "1.2"}
    assert await answer(handlers, mentioned("<@U1> please deploy", edited=edited)) == "first"
    assert kinds_of(handlers) == {"slack.app_mention"}


async def test_the_name_of_the_bot_is_no_word_of_a_mention() -> None:
    handlers = Handlers()
    handlers.mention("U1")(named("wrong"))
    handlers.mention(re.compile("^deploy"))(named("right"))
    assert await answer(handlers, mentioned(" <@U1>: deploy")) == "right"


async def test_a_handler_reads_the_groups_of_the_pattern_that_took_its_event() -> None:
    handlers = Handlers()

    @handlers.mention("status", re.compile(r"^deploy (?P<service>\w+)"))
    async def deploy(event: Event, ctx: Context) -> str | None:
        return event.match["service"] if event.match else None

    assert await answer(handlers, mentioned("<@U1> deploy api")) == "api"
    assert await answer(handlers, mentioned("<@U1> status")) is None


def test_a_worded_mention_behind_a_route_of_all_mentions_is_refused() -> None:
    handlers = Handlers()
    handlers.mention()(named("all"))
    with pytest.raises(HandlersError, match="never reached"):
        handlers.mention("deploy")(named("late"))
