"""The documented manifest has what the built-in handlers and the examples use."""

import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from surelane_dev.simulator.manifest import DOCUMENTED, manifest_of
from surelane_dev.simulator.webapi.methods import METHODS
from surelane_service.subscriptions import COMMAND, EVENT_TYPES
from surelane_worker import Handlers
from surelane_worker.handling.registry import registered_in
from surelane_worker.handling.routes import SHORTCUT
from surelane_worker.slack.replies import Replies
from surelane_worker.wiring import load_handlers

ROOT = Path(__file__).parents[2]
URL = "https://YOUR-HOST/slack/events"
SETS = [
    "surelane_worker.builtin:handlers",
    "surelane_dev.demonstration:handlers",
    "team_bot:handlers",
    *(f"examples.{path.parent.name}.handlers:handlers" for path in ROOT.glob("examples/*/handlers.py")),
]
SOURCES = [
    ROOT / "k8s/components/simulator/demonstration.py",
    *(ROOT / "examples").rglob("*.py"),
    *(ROOT / "services/worker/src/surelane_worker/builtin").rglob("*.py"),
]

HISTORY = {"channels:history", "groups:history", "im:history", "mpim:history"}
"""Lookups of earlier replies need these wherever the bot replies."""
SCOPES_OF_CALLS = {
    "reply": {"chat:write"} | HISTORY,
    "stream": {"chat:write"},
    "react": {"reactions:write"},
    "set_status": {"assistant:write"},
    "whisper": {"chat:write"},
    "set_title": {"assistant:write"},
    "set_suggested_prompts": {"assistant:write"},
    "upload": {"files:write"},
    "open_view": set[str](),
    "update_view": set[str](),
    "publish_home": set[str](),
    "client.auth_test": set[str](),
    "client.agents_sessions_setStatus": {"chat:write"},
    "client.chat_stopStream": {"chat:write"},
    "client.conversations_open": {"im:write"},
    "client.users_info": {"users:read"},
}
SCOPES_OF_EVENTS = {
    "app_mention": {"app_mentions:read"},
    "message.im": {"im:history"},
    "message.channels": {"channels:history"},
    "message.groups": {"groups:history"},
    "message.mpim": {"mpim:history"},
    "app_home_opened": set[str](),
}


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docs/slack-app-manifest.yaml").read_text())
    return loaded


@pytest.fixture(scope="module")
def handlers() -> Iterator[list[Handlers]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "examples/team"))
        patch.setattr(sys, "path", [*sys.path, str(ROOT)])
        yield [load_handlers(name) for name in SETS]
    for name in [name for name in sys.modules if name.partition(".")[0] == "team_bot"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def kinds(handlers: list[Handlers]) -> set[str]:
    return {kind for each in handlers for handler in registered_in(each).all() for kind in handler.kinds}


@pytest.fixture(scope="module")
def scopes(manifest: dict[str, Any]) -> set[str]:
    return set(manifest["oauth_config"]["scopes"]["bot"])


def test_the_manifest_for_http_differs_by_its_one_url(manifest: dict[str, Any]) -> None:
    text = (ROOT / "docs/slack-app-manifest-http.yaml").read_text()
    http: dict[str, Any] = yaml.safe_load(text)
    without = yaml.safe_load("\n".join(line for line in text.splitlines() if f": {URL}" not in line))
    assert without == manifest | {"settings": manifest["settings"] | {"socket_mode_enabled": False}}
    assert manifest["settings"]["socket_mode_enabled"]
    assert "YOUR-HOST" not in str(manifest)
    settings, features = http["settings"], http["features"]
    urls = [
        settings["event_subscriptions"]["request_url"],
        settings["interactivity"]["request_url"],
        settings["interactivity"]["message_menu_options_url"],
        *(command["url"] for command in features["slash_commands"]),
    ]
    assert set(urls) == {URL}
    assert settings["interactivity"]["is_enabled"]
    assert not settings["socket_mode_enabled"]


def test_events_and_commands_have_handlers(
    manifest: dict[str, Any], kinds: set[str], scopes: set[str]
) -> None:
    types = {kind.removeprefix("slack.") for kind in kinds if kind.startswith("slack.")} & EVENT_TYPES
    # With app_context_changed, direct messages say what their author is looking at.
    assert set(manifest["settings"]["event_subscriptions"]["bot_events"]) == types | {"app_context_changed"}
    assert set().union(*(SCOPES_OF_EVENTS[name] for name in types)) <= scopes
    commands = {f"/{kind.removeprefix(COMMAND)}" for kind in kinds if kind.startswith(COMMAND)}
    assert {command["command"] for command in manifest["features"]["slash_commands"]} == commands
    assert "commands" in scopes


def test_a_teams_handlers_have_the_documented_kinds_and_its_image(handlers: list[Handlers]) -> None:
    kinds = "app_mention message.im command.status block_actions shortcut message_action view_submission"
    expected = {f"slack.{kind}" for kind in (*kinds.split(), "app_home_opened")} | {"reminder"}
    team = handlers[SETS.index("team_bot:handlers")]
    assert {kind for handler in registered_in(team).all() for kind in handler.kinds} == expected
    lines = (ROOT / "examples/team/Dockerfile").read_text().splitlines()
    assert len(lines) == 7
    assert "ENV SURELANE_HANDLERS=team_bot:handlers" in lines


def test_shortcuts_are_those_that_have_handlers(manifest: dict[str, Any], handlers: list[Handlers]) -> None:
    wanted = {
        callback_id
        for each in handlers
        for route in registered_in(each).tried()
        if isinstance(route.takes, partial) and route.takes.func == SHORTCUT.finds
        for callback_id in route.takes.args[0]
    }
    assert {shortcut["callback_id"] for shortcut in manifest["features"]["shortcuts"]} == wanted


def test_scopes_are_what_the_calls_need_in_both_manifests(manifest: dict[str, Any], scopes: set[str]) -> None:
    called = {
        name for path in SOURCES for name in re.findall(r"ctx\.slack\.((?:client\.)?\w+)\(", path.read_text())
    }
    assert called, "the sources are found"
    assert set().union(*(SCOPES_OF_CALLS[name] for name in called)) <= scopes
    if "publish_home" in called:
        assert manifest["features"]["app_home"]["home_tab_enabled"]
    assert manifest["features"]["agent_view"]["agent_description"]
    own = {"client", "once", "through", "begin_at", "begun", "notebook", "check_claim"}
    calls = {name for name in vars(Replies) if not name.startswith("_")} - own
    assert calls <= SCOPES_OF_CALLS.keys()
    documented = manifest_of(manifest)
    assert documented.model_copy(update={"scopes": None}) == DOCUMENTED
    simulated = "chat.postMessage chat.startStream reactions.add assistant.threads.setStatus users.info"
    simulated += " files.completeUploadExternal views.publish conversations.open"
    assert {METHODS[name].scope for name in simulated.split()} - {None} <= scopes
