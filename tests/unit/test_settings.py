"""Settings that would lose events, leak tokens, let anyone in or cannot work are refused at start."""

import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from surelane.errors import SettingsError
from surelane_agents import AgentSettings
from surelane_dev.simulator.simulator_settings import SimulatorSettings
from surelane_encryption.keys import Keyring, new_key
from surelane_ingest.ingest_settings import SCOPES, IngestSettings
from surelane_ingest.installing import States
from surelane_migrations.errors import MigrationError
from surelane_migrations.migration_settings import load_database_url
from surelane_operator.cli.command import app
from surelane_operator.console.access.access_settings import AccessSettings
from surelane_service.common.connecting import parse
from surelane_service.compatibility import unfit
from surelane_service.service_settings import (
    DEMO_BOT_TOKEN,
    DEMO_CLIENT_SECRET,
    DEMO_SIGNING_SECRET,
    load_settings,
    misspelled,
    secrets_of,
    variables_of,
)
from surelane_worker.worker_settings import WorkerSettings
from tests.deploy.settings import READ

ROOT = Path(__file__).parents[2]
SIMULATOR = {"SLACK_API_URL": "http://127.0.0.1:8090/api/"}
INSTALLS = {
    "SLACK_CLIENT_ID": "1.2",
    "SLACK_CLIENT_SECRET": "client-secret",
    "SURELANE_ENCRYPTION_KEYS": new_key(),
    "SLACK_BOT_TOKEN": "xoxb-one",
}
WEBHOOK = "whsec_" + "c2VjcmV0" * 4
OF_WORKERS = {"SURELANE_LEASE", "SURELANE_SESSION_GRACE", "SURELANE_SLACK_LIMITS", "SURELANE_CONCURRENCY"}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SIMULATOR, *INSTALLS, *OF_WORKERS, "SURELANE_WORKER_NAME", "SURELANE_HISTORY_RETENTION"):
        monkeypatch.delenv(name, raising=False)
    for name in ("SLACK_APP_TOKEN", "SURELANE_EVENT_TYPES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DATABASE_URL", "postgresql://u@/d?host=/s")
    monkeypatch.setenv("SLACK_SIGNING_SECRET", "new")


def test_a_misspelled_setting_is_named_with_the_one_that_it_resembles_and_no_others_setting_is() -> None:
    wrong = {"SURELANE_CONCURENCY": "5", "SURELANE_LAESE": "1m", "SURELANE_EVENT_TYPE": "", "SURELANE_X": "1"}
    assert misspelled(WorkerSettings, wrong) == {
        "SURELANE_CONCURENCY": "SURELANE_CONCURRENCY",
        "SURELANE_LAESE": "SURELANE_LEASE",
        "SURELANE_EVENT_TYPE": "SURELANE_EVENT_TYPES",
    }
    everything = dict.fromkeys(set().union(*READ.values()), "")
    for kind in (WorkerSettings, IngestSettings, AccessSettings, AgentSettings, SimulatorSettings):
        own = {name for field in kind.model_fields.values() for name in variables_of(field)}
        others = {name + end: "" for name in everything if name not in own for end in ("", "_FILE")}
        assert misspelled(kind, others) == {}, kind


def test_files_of_secrets_are_settings_and_files_of_others_are_told() -> None:
    wrong = {"SURELANE_CONSOLE_KEY_FILE": "/s", "SURELANE_API_TOKN_FILE": "/s", "SURELANE_MCP_FILE": "/s"}
    assert misspelled(AccessSettings, wrong) == {
        "SURELANE_API_TOKN_FILE": "SURELANE_API_TOKEN_FILE",
        "SURELANE_MCP_FILE": "SURELANE_MCP",
    }


@pytest.mark.parametrize("kind", [IngestSettings, WorkerSettings, AccessSettings])
def test_every_secret_setting_may_be_a_file(
    kind: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = {**INSTALLS, "SLACK_APP_TOKEN": "xapp-1-A1-2-0a", "SURELANE_SHARDS": "a=postgresql://"}
    given |= dict.fromkeys(("SURELANE_TRIGGER_SECRETS", "SURELANE_DISPATCH_SECRETS"), f"name={WEBHOOK}")
    for name in secrets_of(kind):
        given.setdefault(name, "postgresql://other" if "URL" in name else f"a-long-secret-{name}")
    monkeypatch.setenv("SLACK_CLIENT_ID", given["SLACK_CLIENT_ID"])
    expected = load_settings(kind, **{name: given[name] for name in secrets_of(kind)})
    for name in secrets_of(kind):
        (tmp_path / name).write_text(given[name] + "\n")
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(f"{name}_FILE", str(tmp_path / name))
    assert len(secrets_of(kind)) >= 5
    found = load_settings(kind)
    for name, field in kind.model_fields.items():
        if set(variables_of(field)) & set(secrets_of(kind)) and name != "encryption_keys":
            assert getattr(found, name) == getattr(expected, name) != field.default, name
    assert found.encryption_keys is not None
    assert not {given[name] for name in secrets_of(kind)} & set(os.environ.values()), "programs inherit these"


@pytest.mark.parametrize(("first", "second"), [("_FILE", ""), ("", "_FILE"), ("_FILE", "_FILE")])
def test_of_two_names_of_a_setting_the_first_wins_also_as_a_file(
    first: str, second: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DATABASE_URL")
    for name, end in (("SURELANE_OPERATOR_DATABASE_URL", first), ("DATABASE_URL", second)):
        (tmp_path / name).write_text(f"postgresql://{name}")
        monkeypatch.setenv(name + end, str(tmp_path / name) if end else f"postgresql://{name}")
    url = load_settings(AccessSettings).database_url.get_secret_value()
    assert url == "postgresql://SURELANE_OPERATOR_DATABASE_URL"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"a\0b", "zero byte"),
        (b"\xff\xfe", "no text"),
        (b"a" * (64 * 1024 + 1), "larger than 65536 bytes"),
        (None, "cannot be read: No such file"),
    ],
)
@pytest.mark.parametrize("name", ["SLACK_SIGNING_SECRET", "DATABASE_URL", "PGPASSWORD"])
def test_a_secrets_file_that_cannot_be_used_is_named(
    name: str, content: bytes | None, complaint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    at = tmp_path / "secret"
    if content is not None:
        at.write_bytes(content)
    if name != "PGPASSWORD":
        monkeypatch.delenv(name)
    monkeypatch.setenv(f"{name}_FILE", str(at))
    with pytest.raises(SettingsError, match=f"{name}_FILE: .*{complaint}"):
        load_settings(IngestSettings)
    if name != "SLACK_SIGNING_SECRET":
        with pytest.raises((MigrationError, ValueError), match=f"{name}_FILE: .*{complaint}"):
            parse(load_database_url())
    at.unlink(missing_ok=True)
    at.mkdir()
    with pytest.raises(SettingsError, match="no regular file"):
        load_settings(IngestSettings)
    monkeypatch.setenv(name, "given")
    with pytest.raises(SettingsError, match=f"{name} and {name}_FILE are both set"):
        load_settings(IngestSettings)


def test_the_databases_password_may_be_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "password").write_text(" p\r\n")
    monkeypatch.setenv("PGPASSWORD_FILE", str(tmp_path / "password"))
    assert parse("postgresql://u@h/d").driver["password"] == " p"
    assert parse("postgresql://u:own@h/d").driver["password"] == "own"


def test_ingests_defaults_stand_and_secrets_are_separated_by_commas() -> None:
    settings = load_settings(IngestSettings)
    assert settings.event_types == {"app_mention", "message.im"}
    assert settings.database_budget == timedelta(seconds=2)
    assert (settings.port, settings.max_body) == (8080, 2**20)
    settings = load_settings(IngestSettings, SLACK_SIGNING_SECRET=" new , old ,")
    assert settings.signing_secrets == ["new", "old"]
    assert "old" not in repr(settings)
    simulated = load_settings(IngestSettings, SLACK_SIGNING_SECRET=DEMO_SIGNING_SECRET, **SIMULATOR)
    assert simulated.signing_secrets == [DEMO_SIGNING_SECRET]


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
        ("SURELANE_ENCRYPTION_KEYS", "", "SURELANE_ENCRYPTION_KEYS is not set"),
        ("SURELANE_ENCRYPTION_KEYS", "short", "SURELANE_ENCRYPTION_KEYS: key 1"),
        ("SLACK_CLIENT_ID", "", "SLACK_CLIENT_ID is not set"),
        ("SLACK_CLIENT_SECRET", DEMO_CLIENT_SECRET, "SLACK_CLIENT_SECRET is a public demo secret"),
        ("SLACK_SCOPES", "chat:write,<b>", "<b> is no scope"),
        ("SLACK_REDIRECT_URI", "javascript:alert(1)", "SLACK_REDIRECT_URI"),
        ("SLACK_AUTHORIZE_URL", "https://slack.com/?a=b", "SLACK_AUTHORIZE_URL"),
        ("SURELANE_LEASE", "100ms", "SURELANE_LEASE must be at least 1.0s"),
        ("SURELANE_SESSION_GRACE", "0s", "SURELANE_SESSION_GRACE must be at least 0.1s"),
        ("SURELANE_LEASE", "soon", "is not a duration"),
        ("SURELANE_SLACK_LIMITS", "some", "'on', 'non-marketplace' or 'off'"),
        ("SURELANE_CONCURRENCY", "0", "greater than or equal to 1"),
    ],
)
def test_unusable_settings_are_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, complaint: str
) -> None:
    installs = name in INSTALLS or name in ("SLACK_SCOPES", "SLACK_REDIRECT_URI", "SLACK_AUTHORIZE_URL")
    for given in ((INSTALLS if installs else {}) | {name: value}).items():
        monkeypatch.setenv(*given)
    with pytest.raises(SettingsError, match=complaint):
        load_settings(WorkerSettings if name in OF_WORKERS else IngestSettings)


def test_each_missing_setting_has_one_line_and_nothing_else_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABASE_URL")
    with pytest.raises(SettingsError, match=r"\Asettings cannot be used:\n  DATABASE_URL is not set\Z"):
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


@pytest.mark.parametrize("kind", [IngestSettings, WorkerSettings])
def test_installs_are_on_with_id_secret_and_keys(kind: type[IngestSettings] | type[WorkerSettings]) -> None:
    settings = load_settings(kind, **INSTALLS)
    assert settings.installs
    assert not any(secret in repr(settings) for secret in list(INSTALLS.values())[1:])
    without = load_settings(kind, **INSTALLS | {"SLACK_CLIENT_SECRET": None})
    assert not without.installs
    if isinstance(settings, WorkerSettings) and isinstance(without, WorkerSettings):
        assert (settings.bot_token, settings.answers) == (None, True), "the one token is not used"
        assert without.bot_token == "xoxb-one"


def test_installs_ask_for_the_manifests_scopes_and_a_state_of_another_app_installs_nothing() -> None:
    manifest = (ROOT / "docs/slack-app-manifest.yaml").read_text()
    listed = manifest.split("bot:")[1].split("settings:")[0].split("\n")
    assert set(SCOPES) == {line.strip().removeprefix("- ") for line in listed if line.strip()}
    ours, others = [States(Keyring([new_key()])) for _ in range(2)]
    assert ours.read(ours.issue()) is not None
    assert ours.read(others.issue()) is None


def test_workers_defaults_are_the_documented_ones_and_each_process_has_its_own_name() -> None:
    settings = load_settings(WorkerSettings)
    assert (settings.concurrency, settings.max_attempts, settings.notifications) == (10, 3, True)
    assert (settings.poll_interval, settings.session_grace) == (timedelta(seconds=5), timedelta(seconds=1))
    assert (settings.lease, settings.max_vt_age) == (timedelta(minutes=10), timedelta(hours=1))
    assert settings.backoff_base == timedelta(seconds=10)
    assert settings.drain_timeout == timedelta(seconds=30)
    assert settings.slack_limits == "on"
    assert load_settings(WorkerSettings).name != settings.name


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


def test_a_token_is_kept_out_of_sight_and_the_demos_is_never_sent_to_slack_itself() -> None:
    assert load_settings(WorkerSettings).bot_token is None
    assert load_settings(WorkerSettings, **SIMULATOR).bot_token == DEMO_BOT_TOKEN
    settings = load_settings(WorkerSettings, SLACK_BOT_TOKEN="xoxb-very-secret")
    assert settings.bot_token == "xoxb-very-secret"
    assert "very-secret" not in repr(settings)


def test_the_command_reads_its_database_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DATABASE_URL")
    (tmp_path / "url").write_text("postgresql://u@127.0.0.1:1/d\n")
    for path, code, said in (
        (tmp_path / "url", 4, "cannot reach the database: ConnectionRefused"),
        (tmp_path / "none", 2, "DATABASE_URL_FILE: .*none cannot be read"),
    ):
        monkeypatch.setenv("DATABASE_URL_FILE", str(path))
        shown = CliRunner().invoke(app, ["stats"])
        monkeypatch.delenv("DATABASE_URL", raising=False)
        assert (shown.exit_code, bool(re.search(said, shown.output))) == (code, True), shown.output
