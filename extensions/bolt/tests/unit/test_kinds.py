"""The kinds of events that a Bolt app's listeners take are seen from the listeners."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from slack_bolt import App, Assistant
from slack_bolt.async_app import AsyncApp, AsyncAssistant
from structlog.testing import capture_logs

from surelane_bolt import bolt_handlers, is_bolt_app
from surelane_bolt.internals import RegisteredListener, registered
from surelane_bolt.kinds import INTERACTIONS, idle_listeners, kinds_of
from surelane_service import subscriptions
from surelane_worker.handling.handler import HandlersError
from surelane_worker.handling.registry import registered_in

MESSAGES = list(subscriptions.MESSAGES)
Make = Callable[[], App | AsyncApp]


def sync_app() -> App:
    return App(token="xoxb-any", signing_secret="unused", token_verification_enabled=False)


def async_app() -> AsyncApp:
    return AsyncApp(token="xoxb-any", signing_secret="unused")


async def listen() -> None: ...


@pytest.mark.parametrize("make", [sync_app, async_app])
@pytest.mark.parametrize(
    ("register", "kinds"),
    [
        (lambda app: app.event("app_mention"), ["slack.app_mention"]),
        (lambda app: app.event({"type": "reaction_added"}), ["slack.reaction_added"]),
        (lambda app: app.event(re.compile("^pin_")), ["slack.pin_added", "slack.pin_removed"]),
        (lambda app: app.event("message"), MESSAGES),
        (lambda app: app.event({"type": "message", "subtype": None}), MESSAGES),
        (lambda app: app.message("hello"), MESSAGES),
        (lambda app: app.message(re.compile("hello")), MESSAGES),
        (lambda app: app.command("/deploy"), ["slack.command.deploy"]),
        (lambda app: app.shortcut("open"), ["slack.shortcut", "slack.message_action"]),
        (lambda app: app.global_shortcut("open"), ["slack.shortcut"]),
        (lambda app: app.message_shortcut("open"), ["slack.message_action"]),
        (lambda app: app.shortcut({"type": "message_action", "callback_id": "o"}), ["slack.message_action"]),
        (lambda app: app.action({"action_id": "a", "block_id": "b"}), ["slack.block_actions"]),
        (lambda app: app.block_action("a"), ["slack.block_actions"]),
        (lambda app: app.attachment_action("a"), ["slack.interactive_message"]),
        (lambda app: app.dialog_submission("a"), ["slack.dialog_submission"]),
        (lambda app: app.dialog_cancellation("a"), ["slack.dialog_cancellation"]),
        (lambda app: app.view("v"), ["slack.view_submission"]),
        (lambda app: app.view({"type": "view_closed", "callback_id": "v"}), ["slack.view_closed"]),
        (lambda app: app.view_submission("v"), ["slack.view_submission"]),
        (lambda app: app.view_closed("v"), ["slack.view_closed"]),
        (lambda app: app.options("o"), ["slack.block_suggestion", "slack.dialog_suggestion"]),
        (lambda app: app.block_suggestion("o"), ["slack.block_suggestion"]),
        (lambda app: app.dialog_suggestion("o"), ["slack.dialog_suggestion"]),
        (lambda app: app.function("reverse"), ["slack.function_executed"]),
    ],
)
def test_kinds_of_a_listener(make: Make, register: Callable[[Any], Any], kinds: list[str]) -> None:
    app = make()
    register(app)(listen)
    assert (list(kinds_of(app)), list(idle_listeners(app))) == (kinds, [])


def test_apps_of_no_listener_events_commands_all_actions_or_assistants_and_what_is_no_app() -> None:
    app = sync_app()
    with pytest.raises(HandlersError, match="the Bolt app has no listeners"):
        bolt_handlers(app)
    app.event("app_mention")(listen)
    assert [handler.answers for handler in registered_in(bolt_handlers(app)).all()] == [False]
    app.command("/deploy")(listen)
    assert {handler.answers for handler in registered_in(bolt_handlers(app)).all()} == {True}
    everything = sync_app()
    everything.action("approve")(listen)
    assert list(kinds_of(everything)) == [f"slack.{name}" for name in INTERACTIONS["action"]]
    kinds = {"slack.assistant_thread_started", "slack.assistant_thread_context_changed", "slack.message.im"}
    synchronous, asynchronous = sync_app(), async_app()
    synchronous.assistant(Assistant())
    asynchronous.assistant(AsyncAssistant())
    assert set(kinds_of(synchronous)) == set(kinds_of(asynchronous)) == kinds

    class Own(App): ...

    class AsyncOther: ...

    assert is_bolt_app(sync_app())
    assert is_bolt_app(async_app())
    assert is_bolt_app(Own(token="xoxb-any", signing_secret="unused", token_verification_enabled=False))
    assert not is_bolt_app(AsyncOther())
    assert not is_bolt_app(type("App", (), {})())


def test_command_by_a_pattern_needs_the_setting() -> None:
    app = sync_app()
    app.command(re.compile("^/deploy-"))(listen)
    with pytest.raises(HandlersError, match=r"listener listen .* by a pattern.*SURELANE_BOLT_KINDS"):
        kinds_of(app)
    assert kinds_of(app, ["slack.command.deploy-web"]) == ("slack.command.deploy-web",)
    app._listeners[0].matchers[0].func = None  # type: ignore[attr-defined]  # noqa: SLF001
    assert list(registered(app)) == [RegisteredListener("listen", "", {})], "an unknown matcher has no sort"


@pytest.mark.parametrize("make", [sync_app, async_app])
@pytest.mark.parametrize(
    ("register", "idle"),
    [
        (lambda app: app.event({"type": "message", "subtype": re.compile("file")}), False),
        (lambda app: app.event({"type": "message", "subtype": ["message_changed", "file_share"]}), False),
        (lambda app: app.event({"type": "message", "subtype": "message_changed"}), True),
        (lambda app: app.event({"type": "message", "subtype": ["group_join", re.compile("_leave$")]}), True),
        (lambda app: app.action({"type": "workflow_step_edit", "callback_id": "s"}), True),
    ],
)
def test_listeners_that_never_run_are_seen(make: Make, register: Callable[[Any], Any], idle: bool) -> None:
    app = make()
    register(app)(listen)
    assert [name for name, _ in idle_listeners(app)] == (["listen"] if idle else [])


@pytest.mark.parametrize("make", [sync_app, async_app])
def test_a_warning_at_start_names_each_listener_that_can_never_run(make: Make) -> None:
    async def answered() -> None: ...

    async def edited() -> None: ...

    async def deployed() -> None: ...

    async def restarted() -> None: ...

    app: Any = make()
    app.event("app_mention")(answered)
    app.event({"type": "message", "subtype": "message_changed"})(edited)
    app.command(re.compile("^/deploy-"))(deployed)
    app.command(re.compile("^/restart-"))(restarted)
    with capture_logs() as logs:
        bolt_handlers(app, ["slack.command.restart-web"])
    assert [(line["log_level"], line["listener"], line["reason"]) for line in logs] == [
        ("warning", "edited", "ingest takes no messages of subtype message_changed"),
        ("warning", "deployed", "SURELANE_BOLT_KINDS has no command that it takes"),
    ]
