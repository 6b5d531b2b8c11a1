"""The Slack app's manifest is the one place of its event types, and one that cannot be read is said in one line."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from surelane.errors import SettingsError
from surelane_dev.simulator.manifest import read_manifest
from surelane_ingest.ingest_settings import SCOPES, IngestSettings
from surelane_service.manifest import bot_events, found_manifest, slash_commands
from surelane_service.service_settings import load_settings
from surelane_worker.wiring import _handlers
from surelane_worker.worker_settings import WorkerSettings

APP = "display_information: {name: shop}\n"
EVENTS = f"{APP}settings:\n  event_subscriptions:\n    bot_events: [app_mention, reaction_added]\n"
HANDLERS = """
from surelane_worker import Handlers

handlers = Handlers()


@handlers.on("slack.app_mention", "slack.reaction_added", "slack.team_join")
async def answer(event, ctx): ...
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty directory, in which the services run."""
    for name in ("SURELANE_EVENT_TYPES", "SURELANE_MANIFEST", "SLACK_APP_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DATABASE_URL", "postgresql://u@/d?host=/s")
    monkeypatch.setenv("SLACK_API_URL", "http://127.0.0.1:9/api/")
    monkeypatch.setenv("SLACK_SIGNING_SECRET", "any")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("manifest.yaml", "a:\n  - b\n c: [\n", ":3: "),
        ("manifest.yaml", "a: 1\nb: [1,\n", ":3: "),
        ("manifest.yaml", "a: \x01\n", ": unacceptable character"),
        ("manifest.json", '{"a": 1,\n"b" 2}', ":2: "),
        ("manifest.yaml", "- a\n", ": it is no manifest of a Slack app"),
        ("manifest.yaml", "", ": it is no manifest of a Slack app"),
        ("manifest.yaml", None, ": No such file or directory"),
        (
            "manifest.yaml",
            "settings: {event_subscriptions: {bot_events: app_mention}}",
            ": bot_events is no list",
        ),
        ("manifest.yaml", "settings: {event_subscriptions: {bot_events: [1]}}", ": bot_events is no list"),
        ("manifest.yaml", "settings: [1]", ": bot_events is no list"),
    ],
)
@pytest.mark.parametrize("read", [bot_events, read_manifest])
def test_one_that_cannot_be_read_is_one_line_with_the_file(
    project: Path, read: Callable[[Path], object], name: str, text: str | None, said: str
) -> None:
    if text is not None:
        (project / name).write_text(text)
    with pytest.raises(SettingsError) as told:
        read(project / name)
    assert str(told.value).startswith(f"SURELANE_MANIFEST: {project / name}{said}")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("features: {slash_commands: [{description: a}]}", "commands.0.command: Field required"),
        ("features: [1]", "features, oauth_config and settings are no groups of entries"),
    ],
)
def test_the_simulator_names_the_entry_that_it_cannot_use(project: Path, text: str, said: str) -> None:
    (project / "m.yaml").write_text(text)
    with pytest.raises(SettingsError) as told:
        read_manifest(project / "m.yaml")
    assert str(told.value) == f"SURELANE_MANIFEST: {project / 'm.yaml'}: {said}"


def test_ingest_takes_the_manifest_s_types_and_scopes_unless_others_are_set(project: Path) -> None:
    assert load_settings(IngestSettings).event_types == {"app_mention", "message.im"}
    (project / "manifest.yaml").write_text("kind: Deployment\n---\nkind: Service\n")
    assert found_manifest() is None, "it is another program's"
    (project / "manifest.yaml").write_text(EVENTS)
    assert load_settings(IngestSettings).event_types == {"app_mention", "reaction_added"}
    (project / "other.json").write_text("{}")
    (project / "commands.yaml").write_text("features: {slash_commands: [{command: /deploy}]}")
    assert slash_commands(project / "commands.yaml") == frozenset({"/deploy"})
    assert slash_commands(project / "other.json") is slash_commands(None) is None
    assert load_settings(IngestSettings, SURELANE_MANIFEST="other.json").event_types == set()
    assert load_settings(IngestSettings, SURELANE_EVENT_TYPES="team_join").event_types == {"team_join"}
    assert load_settings(IngestSettings).scopes == SCOPES, "the manifest has none"
    (project / "manifest.yaml").write_text(
        f"{APP}oauth_config: {{scopes: {{bot: [chat:write, im:history]}}}}"
    )
    assert load_settings(IngestSettings).scopes == ("chat:write", "im:history")
    assert load_settings(IngestSettings, SLACK_SCOPES="commands").scopes == ("commands",)
    (project / "manifest.yaml").write_text(f"{APP}settings: [")
    with pytest.raises(SettingsError, match=r"manifest.yaml:2: "):
        load_settings(IngestSettings)


@pytest.mark.parametrize("module", ["handlers", "bot.handlers", "bot"])
def test_a_worker_finds_the_manifest_beside_the_handlers_and_says_which_line_to_add(
    project: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    there = project / "elsewhere"
    path = there / f"{module.replace('.', '/')}.py" if module != "bot" else there / "bot/__init__.py"
    path.parent.mkdir(parents=True)
    path.write_text(HANDLERS)
    (there / "manifest.yaml").write_text(EVENTS)
    monkeypatch.syspath_prepend(there)
    for name in ("bot", "bot.handlers", "handlers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with capture_logs() as logs:
        _handlers(load_settings(WorkerSettings, SURELANE_HANDLERS=f"{module}:handlers"))
    told = "the app's manifest does not subscribe to team_join; add below bot_events: - team_join"
    assert [line["reason"] for line in logs if "reason" in line] == [told]
    for name in ("bot", "bot.handlers", "handlers"):
        sys.modules.pop(name, None)
