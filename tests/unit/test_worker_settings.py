"""The worker refuses settings that it cannot use."""

from datetime import timedelta

import pytest

from surelane.errors import SettingsError
from surelane_service.service_settings import DEMO_BOT_TOKEN, load_settings
from surelane_worker.worker_settings import WorkerSettings


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLACK_BOT_TOKEN", "SLACK_API_URL", "SURELANE_HISTORY_RETENTION"):
        monkeypatch.delenv(name, raising=False)
    for name in ("SURELANE_LEASE", "SURELANE_CONCURRENCY", "SURELANE_WORKER_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DATABASE_URL", "postgresql://surelane@/surelane?host=/tmp")


def test_defaults_are_the_documented_ones() -> None:
    settings = load_settings(WorkerSettings)
    assert (settings.concurrency, settings.max_attempts, settings.notifications) == (10, 3, True)
    assert settings.poll_interval == timedelta(seconds=5)
    assert settings.lease == timedelta(minutes=10)
    assert settings.session_grace == timedelta(seconds=5)
    assert settings.max_vt_age == timedelta(hours=1)
    assert settings.backoff_base == timedelta(seconds=10)
    assert settings.drain_timeout == timedelta(seconds=30)
    assert settings.slack_limits == "on"


def test_history_is_kept_for_ninety_days_and_data_after_an_uninstall_unless_told() -> None:
    assert load_settings(WorkerSettings).history_retention == timedelta(days=90)
    for given, days in (("30d", 30), ("off", None), ("OFF", None), ("3d", 3)):
        kept = load_settings(WorkerSettings, SURELANE_HISTORY_RETENTION=given).history_retention
        assert kept == (None if days is None else timedelta(days=days))
    for given in ("0", "1d", "for ever"):  # in which duplicates come
        with pytest.raises(SettingsError, match=r"at least 3d|not a duration"):
            load_settings(WorkerSettings, SURELANE_HISTORY_RETENTION=given)
    assert load_settings(WorkerSettings).erase_uninstalled_after is None
    for given, after in (("off", None), ("30d", timedelta(days=30))):
        settings = load_settings(WorkerSettings, SURELANE_ERASE_UNINSTALLED_AFTER=given)
        assert settings.erase_uninstalled_after == after


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("SURELANE_LEASE", "100ms", "SURELANE_LEASE must be at least 1.0s"),
        ("SURELANE_SESSION_GRACE", "0s", "SURELANE_SESSION_GRACE must be at least 0.1s"),
        ("SURELANE_LEASE", "soon", "is not a duration"),
        ("SURELANE_SLACK_LIMITS", "some", "'on', 'non-marketplace' or 'off'"),
        ("SURELANE_CONCURRENCY", "0", "greater than or equal to 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(name: str, value: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        load_settings(WorkerSettings, **{name: value})


def test_demo_token_is_never_sent_to_slack_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings(WorkerSettings).bot_token is None
    monkeypatch.setenv("SLACK_API_URL", "http://127.0.0.1:8090/api/")
    assert load_settings(WorkerSettings).bot_token == DEMO_BOT_TOKEN


def test_token_is_kept_out_of_sight_and_each_process_has_its_own_name() -> None:
    settings = load_settings(WorkerSettings, SLACK_BOT_TOKEN="xoxb-very-secret")
    assert settings.bot_token == "xoxb-very-secret"
    assert "very-secret" not in repr(settings)
    assert load_settings(WorkerSettings).name != settings.name
