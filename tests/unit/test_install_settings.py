"""Settings of installs that could lose or leak tokens are refused before anything starts."""

from pathlib import Path

import pytest

from surelane.encryption.keys import Keyring, new_key
from surelane.errors import SettingsError
from surelane_ingest.ingest_settings import SCOPES, IngestSettings
from surelane_ingest.installing import States
from surelane_service.service_settings import DEMO_CLIENT_SECRET, load_settings
from surelane_worker.worker_settings import WorkerSettings

ROOT = Path(__file__).parents[2]
GOOD = {
    "DATABASE_URL": "postgresql://u@/d?host=/s",
    "SLACK_SIGNING_SECRET": "signing",
    "SLACK_CLIENT_ID": "1.2",
    "SLACK_CLIENT_SECRET": "client-secret",
    "SURELANE_ENCRYPTION_KEYS": new_key(),
    "SLACK_BOT_TOKEN": "xoxb-one",
}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in GOOD.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLACK_API_URL", raising=False)


@pytest.mark.parametrize("kind", [IngestSettings, WorkerSettings])
def test_installs_are_on_with_id_secret_and_keys(
    kind: type[IngestSettings] | type[WorkerSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_settings(kind)
    assert settings.installs
    assert not any(secret in repr(settings) for secret in list(GOOD.values())[3:])
    monkeypatch.delenv("SLACK_CLIENT_SECRET")
    assert not load_settings(kind).installs


def test_the_one_token_is_not_used_where_installs_are_on(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(WorkerSettings)
    assert (settings.bot_token, settings.answers) == (None, True)
    monkeypatch.delenv("SLACK_CLIENT_SECRET")
    assert load_settings(WorkerSettings).bot_token == "xoxb-one"


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("SURELANE_ENCRYPTION_KEYS", "", "SURELANE_ENCRYPTION_KEYS is not set"),
        ("SURELANE_ENCRYPTION_KEYS", "short", "SURELANE_ENCRYPTION_KEYS: key 1"),
        ("SLACK_CLIENT_ID", "", "SLACK_CLIENT_ID is not set"),
        ("SLACK_CLIENT_SECRET", DEMO_CLIENT_SECRET, "SLACK_CLIENT_SECRET is a public demo secret"),
        ("SLACK_SCOPES", "chat:write,<b>", "<b> is no scope"),
        ("SLACK_REDIRECT_URI", "javascript:alert(1)", "SLACK_REDIRECT_URI"),
        ("SLACK_AUTHORIZE_URL", "https://slack.com/?a=b", "SLACK_AUTHORIZE_URL"),
    ],
)
def test_settings_that_cannot_be_used_are_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, complaint: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=complaint):
        load_settings(IngestSettings)


def test_installs_ask_for_the_manifests_scopes() -> None:
    manifest = (ROOT / "docs/slack-app-manifest.yaml").read_text()
    assert set(SCOPES) == {
        line.strip().removeprefix("- ")
        for line in manifest.split("bot:")[1].split("settings:")[0].split("\n")
        if line.strip()
    }


def test_a_state_that_another_app_issued_installs_nothing() -> None:
    ours, others = [States(Keyring([new_key()])) for _ in range(2)]
    assert ours.read(ours.issue()) is not None
    assert ours.read(others.issue()) is None
