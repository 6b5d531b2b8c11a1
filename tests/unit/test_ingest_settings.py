"""Settings that would lose events or let anyone in are refused before anything starts."""

from datetime import timedelta

import pytest

from surelane.errors import SettingsError
from surelane_ingest.ingest_settings import IngestSettings
from surelane_service.compatibility import unfit
from surelane_service.service_settings import DEMO_SIGNING_SECRET, load_settings


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://u@/d?host=/s")
    monkeypatch.setenv("SLACK_SIGNING_SECRET", "new")
    for name in ("SLACK_API_URL", "SLACK_APP_TOKEN", "SURELANE_EVENT_TYPES"):
        monkeypatch.delenv(name, raising=False)


def test_defaults_stand_and_secrets_are_separated_by_commas() -> None:
    settings = load_settings(IngestSettings)
    assert settings.event_types == {"app_mention", "message.im"}
    assert settings.database_budget == timedelta(seconds=2)
    assert (settings.port, settings.max_body) == (8080, 2**20)
    settings = load_settings(IngestSettings, SLACK_SIGNING_SECRET=" new , old ,")
    assert settings.signing_secrets == ["new", "old"]
    assert "old" not in repr(settings)
    simulator = {"SLACK_SIGNING_SECRET": DEMO_SIGNING_SECRET, "SLACK_API_URL": "http://127.0.0.1:8090/api/"}
    assert load_settings(IngestSettings, **simulator).signing_secrets == [DEMO_SIGNING_SECRET]


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("SLACK_SIGNING_SECRET", " , ", "holds no secret"),
        ("SLACK_SIGNING_SECRET", "", "SLACK_APP_TOKEN .* or SLACK_SIGNING_SECRET .* must be set"),
        ("SLACK_APP_TOKEN", "xoxb-1-2", "begin with xapp-"),
        ("SURELANE_SOCKET_CONNECTIONS", "5", "SURELANE_SOCKET_CONNECTIONS"),
        ("SLACK_SIGNING_SECRET", f"new,{DEMO_SIGNING_SECRET}", "demo secret"),
        ("SURELANE_EVENT_TYPES", "app_mention,message im", "message im"),
        ("SURELANE_EVENT_TYPES", ",", "no event type"),
        ("SURELANE_MAX_BODY", "much", "SURELANE_MAX_BODY"),
        ("SURELANE_MAX_BODY", "1", "at least 1KiB"),
        ("SURELANE_BODY_MEMORY", "2KiB", "no less than SURELANE_MAX_BODY"),
        ("SURELANE_DATABASE_BUDGET", "0", "longer than 0"),
        ("SURELANE_BUFFER", "0", "SURELANE_BUFFER"),
        ("SURELANE_PORT", "70000", "SURELANE_PORT"),
    ],
)
def test_settings_that_cannot_be_used_are_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, complaint: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=complaint):
        load_settings(IngestSettings)


def test_socket_mode_needs_no_signing_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLACK_SIGNING_SECRET")
    monkeypatch.setenv("SLACK_APP_TOKEN", "xapp-1-A1-2-0a")
    settings = load_settings(IngestSettings)
    assert (settings.signing_secrets, settings.socket_connections) == ([], 2)
    assert "xapp" not in repr(settings)


@pytest.mark.parametrize(
    ("version", "compatible", "ours", "fits"),
    [
        ("0.9.0", "0.9.0", "0.9.0", True),
        ("0.10.0", "0.1.0", "0.9.0", True),
        ("1.0.0", "0.9.0", "0.9.0", True),
        ("1.0.0", "0.10.0", "0.9.0", False),
        ("0.8.9", "0.1.0", "0.9.0", False),
        ("garbled", "0.1.0", "0.9.0", False),
        ("1.0.0rc1", "0.2.0", "1.0.0rc1", True),
        ("1.0.0rc1", "0.2.0", "1.0.0rc2", False),
        ("1.0.0rc10", "0.2.0", "1.0.0rc9", True),
        ("1.0.0rc9", "0.2.0", "1.0.0", False),
        ("1.0.0", "0.2.0", "1.0.0rc1", True),
        ("1.0.0", "1.0.0", "1.0.0rc1", False),
    ],
)
def test_a_newer_schema_fits_if_it_says_so(version: str, compatible: str, ours: str, fits: bool) -> None:
    assert (unfit(version, compatible, ours=ours) is None) is fits
