"""`surelane dev` gives its programs the right settings, and the simulator no secret."""

import re
from pathlib import Path

import pytest

from surelane_dev.dev_settings import DevSettings
from surelane_dev.project import Project
from surelane_dev.services import Databases, services, set_aside, where_to_look
from surelane_ingest.ingest_settings import IngestSettings
from surelane_operator.console.access.access_settings import AccessSettings
from surelane_operator.console.access.sessions import Signer
from surelane_service.service_settings import (
    DEMO_API_TOKEN,
    DEMO_BOT_TOKEN,
    DEMO_CLIENT_ID,
    DEMO_CLIENT_SECRET,
    DEMO_SIGNING_SECRET,
    load_settings,
)
from surelane_worker.worker_settings import WorkerSettings

PORTS = {
    "ingest": 1080,
    "operator": 1081,
    "worker_private": 1082,
    "ingest_private": 1083,
    "simulator": 1090,
}
PROJECT = Project(Path("/home/ada/mybot"), "mybot.handlers:handlers", Path("/home/ada/mybot/manifest.yaml"))
SUPERUSER = "postgresql://postgres@/postgres?host=/data/18"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "SURELANE_DEV_DATABASE_URL",
        "DATABASE_URL",
        "SLACK_API_URL",
        "SLACK_APP_TOKEN",
        "SLACK_SIGNING_SECRET",
        "SLACK_BOT_TOKEN",
        "SLACK_CLIENT_ID",
        "SLACK_CLIENT_SECRET",
        "SURELANE_ENCRYPTION_KEYS",
        "SURELANE_HOST",
    ):
        monkeypatch.delenv(name, raising=False)


def environments() -> dict[str, dict[str, str]]:
    found = services(load_settings(DevSettings), PROJECT, PORTS, Databases.embedded(SUPERUSER))
    return {name: dict(start.environment) for name, start in found.items()}


def test_the_services_accept_what_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, port, kind in (
        ("ingest", "ingest_private", IngestSettings),
        ("operator", "operator", AccessSettings),
        ("worker", "worker_private", WorkerSettings),
    ):
        for variable, value in environments()[name].items():
            monkeypatch.setenv(variable, value)
        settings = load_settings(kind)
        assert settings.host == "127.0.0.1"
        assert settings.private_port == PORTS[port]
        assert settings.slack_api_url == "http://127.0.0.1:1090/api/"


def test_each_has_its_own_role() -> None:
    found = environments()
    for name in ("ingest", "operator", "worker"):
        own = f"postgresql://surelane_{name}@/surelane?host=/data/18"
        assert {value for value in found[name].values() if "postgresql" in value} == {own}
    assert (
        found["simulator"]["SURELANE_OPERATOR_DATABASE_URL"]
        == "postgresql://surelane_operator@/surelane?host=/data/18"
    )


REAL = {
    "SLACK_APP_TOKEN": "xapp-1-mine",
    "SLACK_SIGNING_SECRET": "mine",
    "SLACK_BOT_TOKEN": "xoxb-mine",
    "SLACK_CLIENT_ID": "1.1",
    "SLACK_CLIENT_SECRET": "client-mine",
    "SURELANE_DISPATCH_SECRETS": "scribe=whsec_mine",
    "OPENAI_API_KEY": "mine",
    "SURELANE_API_TOKEN": "mine-for-operators",
}


def test_a_real_app_s_secrets_go_to_its_services_and_not_to_the_simulator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLACK_API_URL", "https://slack.test/api/")
    for name, value in REAL.items():
        monkeypatch.setenv(name, value)
    found = environments()
    for service in ("ingest", "operator", "worker"):
        assert found[service]["SLACK_API_URL"] == "https://slack.test/api/"
        assert REAL.items() <= found[service].items()
    assert "mine" not in "\n".join(found["simulator"].values())
    assert found["simulator"]["SURELANE_SIMULATOR_POSTING"] == "off"
    assert not any("DATABASE_URL" in name for name in found["simulator"])
    assert set_aside() == []


def test_where_the_simulator_is_slack_a_real_app_s_secrets_are_set_aside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in REAL.items():
        monkeypatch.setenv(name, value)
    found = environments()
    assert found["ingest"]["SLACK_SIGNING_SECRET"] == DEMO_SIGNING_SECRET
    assert found["worker"]["SLACK_BOT_TOKEN"] == DEMO_BOT_TOKEN
    assert "SLACK_CLIENT_SECRET" not in found["worker"]
    assert "mine" not in "\n".join(found["simulator"].values())
    assert found["simulator"]["SURELANE_SIMULATOR_POSTING"] == "on"
    assert "SLACK_SIGNING_SECRET, SLACK_BOT_TOKEN" in set_aside()[0]


def test_installs_are_tried_with_the_demo_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACK_CLIENT_ID", DEMO_CLIENT_ID)
    monkeypatch.setenv("SLACK_CLIENT_SECRET", DEMO_CLIENT_SECRET)
    found = environments()
    assert found["ingest"]["SLACK_CLIENT_SECRET"] == DEMO_CLIENT_SECRET
    assert found["simulator"]["SLACK_CLIENT_ID"] == DEMO_CLIENT_ID
    assert "SLACK_CLIENT_SECRET" not in found["simulator"]
    assert set_aside() == []
    monkeypatch.delenv("SLACK_CLIENT_SECRET")
    assert not any("SLACK_CLIENT_ID" in found for found in environments().values()), "installs are off"
    monkeypatch.setenv("SLACK_CLIENT_SECRET", DEMO_CLIENT_SECRET)
    shown = where_to_look(load_settings(DevSettings), PROJECT, PORTS, Databases.given("postgresql://"))
    assert any(re.search(r"install the app +http://127.0.0.1:\d+/slack/install$", line) for line in shown)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1"),
        ("0.0.0.0", "http://127.0.0.1"),
        ("::", "http://[::1]"),
        ("box", "http://box"),
    ],
)
def test_addresses_are_shown_as_they_are_reached(
    monkeypatch: pytest.MonkeyPatch, host: str, url: str
) -> None:
    monkeypatch.setenv("SURELANE_HOST", host)
    assert load_settings(DevSettings).url == url
    assert environments()["worker"]["SLACK_API_URL"] == f"{url}:1090/api/"


def test_the_public_token_opens_the_operators_api_on_this_machine_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = environments()
    assert found["operator"]["SURELANE_API_TOKEN"] == DEMO_API_TOKEN
    assert found["operator"]["SURELANE_CONSOLE_SIGN_IN"] == "token"
    assert found["operator"]["SURELANE_MCP"] == "change"
    off = {"SURELANE_API_TOKEN", "SURELANE_CONSOLE_SIGN_IN", "SURELANE_MCP"}
    assert not any(off & found[name].keys() for name in ("ingest", "simulator", "worker"))
    shown = "\n".join(
        where_to_look(load_settings(DevSettings), PROJECT, PORTS, Databases.given("postgresql://"))
    )
    code = re.search(r"http://127.0.0.1:1081/console/sign-in/link\?code=(\S+)", shown)
    assert code is not None
    assert Signer(DEMO_API_TOKEN).read("link", code[1]) is not None
    assert re.search(rf"MCP at http://127.0.0.1:1081/mcp, .*Bearer {DEMO_API_TOKEN}\n", shown)
    assert "SURELANE_API_TOKEN" not in environments()["simulator"]
    monkeypatch.setenv("SURELANE_HOST", "0.0.0.0")
    assert not off & environments()["operator"].keys()


def test_an_empty_variable_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACK_SIGNING_SECRET", "")
    assert environments()["ingest"]["SLACK_SIGNING_SECRET"] == DEMO_SIGNING_SECRET


def test_a_given_database_s_password_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = "postgresql://someone:hunter2@db/surelane"
    monkeypatch.setenv("SURELANE_DEV_DATABASE_URL", uri)
    shown = "\n".join(where_to_look(load_settings(DevSettings), PROJECT, PORTS, Databases.given(uri)))
    assert "hunter2" not in shown
    assert "http://127.0.0.1:1090/" in shown


def test_a_deployment_s_database_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://production/surelane")
    monkeypatch.setenv("SURELANE_OPERATOR_DATABASE_URL", "postgresql://production/surelane")
    assert load_settings(DevSettings).database_url is None
    assert not any("production" in value for found in environments().values() for value in found.values())
    assert "DATABASE_URL, SURELANE_OPERATOR_DATABASE_URL" in set_aside()[0]


def test_a_project_s_handlers_and_manifest_are_used_unless_the_environment_names_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert environments()["worker"]["SURELANE_HANDLERS"] == "mybot.handlers:handlers"
    assert environments()["simulator"]["SURELANE_SIMULATOR_MANIFEST"] == "/home/ada/mybot/manifest.yaml"
    monkeypatch.setenv("SURELANE_HANDLERS", "other:handlers")
    assert environments()["worker"]["SURELANE_HANDLERS"] == "other:handlers"


def test_the_handlers_that_run_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(project: Project) -> str:
        lines = where_to_look(load_settings(DevSettings), project, PORTS, Databases.given("postgresql://"))
        return next(line for line in lines if line.startswith("  handlers"))

    assert "those of the demonstration" in shown(Project(Path()))
    assert "mybot.handlers:handlers" in shown(PROJECT)
    monkeypatch.setenv("SURELANE_HANDLERS", "app:app")
    assert "app:app" in shown(Project(Path()))
    assert "app:app" in shown(PROJECT)


def test_two_tokens_are_enough_for_a_real_app(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "SLACK_API_URL": "https://slack.com/api/",
        "SLACK_APP_TOKEN": "xapp-1-mine",
        "SLACK_BOT_TOKEN": "xoxb-1",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    found = environments()
    for name, value in found["ingest"].items():
        monkeypatch.setenv(name, value)
    assert load_settings(IngestSettings).signing_secrets == []
    assert "xapp-1-mine" not in found["simulator"].values()
