"""`surelane dev` gives its programs the right settings, ports and accounts, and the simulator no secret."""

import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from surelane.errors import SettingsError
from surelane_dev.accounts import uri_of
from surelane_dev.dev_settings import DevSettings
from surelane_dev.ports import Wanted, choose
from surelane_dev.project import Project
from surelane_dev.services import Databases, services, set_aside, where_to_look
from surelane_ingest.ingest_settings import IngestSettings
from surelane_operator.console.access.access_settings import AccessSettings
from surelane_operator.console.access.signing import Signer
from surelane_service.service_settings import (
    DEMO_API_TOKEN,
    DEMO_BOT_TOKEN,
    DEMO_CLIENT_ID,
    DEMO_CLIENT_SECRET,
    DEMO_SIGNING_SECRET,
    load_settings,
)
from surelane_worker.worker_settings import WorkerSettings
from tests.processes import free_port

MANIFEST = Path(__file__).parents[3] / "docs/slack-app-manifest.yaml"
PORTS = {"ingest": 1080, "operator": 1081, "worker_private": 1082, "ingest_private": 1083, "simulator": 1090}
PROJECT = Project(Path("/home/ada/mybot"), "mybot.handlers:handlers", MANIFEST)
SUPERUSER = "postgresql://postgres@/postgres?host=/data/18"
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


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("SURELANE_DEV_DATABASE_URL", "SURELANE_TEST_DATABASE_URL", "DATABASE_URL", "SLACK_API_URL")
    for name in (
        *names,
        "SURELANE_ENCRYPTION_KEYS",
        "SURELANE_HOST",
        *(name for name in REAL if name.startswith("SLACK_")),
    ):
        monkeypatch.delenv(name, raising=False)


def environments() -> dict[str, dict[str, str]]:
    found = services(load_settings(DevSettings), PROJECT, PORTS, Databases.embedded(SUPERUSER))
    return {name: dict(start.environment) for name, start in found.items()}


def shown(project: Project = PROJECT, uri: str = "postgresql://", **missing: str) -> str:
    return "\n".join(where_to_look(load_settings(DevSettings), project, PORTS, Databases.given(uri), missing))


def give(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def test_the_services_accept_what_they_get_with_their_own_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, port, kind in (
        ("ingest", "ingest_private", IngestSettings),
        ("operator", "operator", AccessSettings),
        ("worker", "worker_private", WorkerSettings),
    ):
        given = environments()[name]
        own = f"postgresql://surelane_{name}@/surelane?host=/data/18"
        assert {value for value in given.values() if "postgresql" in value} == {own}
        give(monkeypatch, **given)
        settings = load_settings(kind)
        assert settings.host == "127.0.0.1"
        assert settings.private_port == PORTS[port]
        assert settings.slack_api_url == "http://127.0.0.1:1090/api/"
    uri = environments()["simulator"]["SURELANE_OPERATOR_DATABASE_URL"]
    assert uri == "postgresql://surelane_operator@/surelane?host=/data/18"


def test_real_secrets_go_to_the_services_and_not_to_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, SLACK_API_URL="https://slack.test/api/", **REAL)
    found = environments()
    for service in ("ingest", "operator", "worker"):
        assert found[service]["SLACK_API_URL"] == "https://slack.test/api/"
        assert REAL.items() <= found[service].items()
    assert "mine" not in "\n".join(found["simulator"].values())
    assert found["simulator"]["SURELANE_SIMULATOR_POSTING"] == "off"
    assert not any("DATABASE_URL" in name for name in found["simulator"])
    assert set_aside() == []


def test_where_the_simulator_is_slack_real_secrets_are_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, **REAL)
    found = environments()
    assert found["ingest"]["SLACK_SIGNING_SECRET"] == DEMO_SIGNING_SECRET
    assert found["worker"]["SLACK_BOT_TOKEN"] == DEMO_BOT_TOKEN
    assert "SLACK_CLIENT_SECRET" not in found["worker"]
    assert "mine" not in "\n".join(found["simulator"].values())
    assert found["simulator"]["SURELANE_SIMULATOR_POSTING"] == "on"
    assert "SLACK_SIGNING_SECRET, SLACK_BOT_TOKEN" in set_aside()[0]
    monkeypatch.setenv("SLACK_SIGNING_SECRET", "")
    assert environments()["ingest"]["SLACK_SIGNING_SECRET"] == DEMO_SIGNING_SECRET


def test_installs_are_tried_with_the_demo_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, SLACK_CLIENT_ID=DEMO_CLIENT_ID)
    assert not any("SLACK_CLIENT_ID" in found for found in environments().values()), "installs are off"
    give(monkeypatch, SLACK_CLIENT_SECRET=DEMO_CLIENT_SECRET)
    found = environments()
    assert found["ingest"]["SLACK_CLIENT_SECRET"] == DEMO_CLIENT_SECRET
    assert found["simulator"]["SLACK_CLIENT_ID"] == DEMO_CLIENT_ID
    assert "SLACK_CLIENT_SECRET" not in found["simulator"]
    assert set_aside() == []
    assert re.search(r"install the app +http://127.0.0.1:\d+/slack/install$", shown(), re.MULTILINE)


@pytest.mark.parametrize(
    ("host", "reached"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("box", "box")],
)
def test_addresses_can_be_reached_as_shown(monkeypatch: pytest.MonkeyPatch, host: str, reached: str) -> None:
    monkeypatch.setenv("SURELANE_HOST", host)
    assert load_settings(DevSettings).url == f"http://{reached}"
    assert environments()["worker"]["SLACK_API_URL"] == f"http://{reached}:1090/api/"


def test_the_public_token_opens_the_api_on_this_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    found = environments()
    assert found["operator"]["SURELANE_API_TOKEN"] == DEMO_API_TOKEN
    assert found["operator"]["SURELANE_CONSOLE_SIGN_IN"] == "token"
    assert found["operator"]["SURELANE_MCP"] == "change"
    off = {"SURELANE_API_TOKEN", "SURELANE_CONSOLE_SIGN_IN", "SURELANE_MCP"}
    assert not any(off & found[name].keys() for name in ("ingest", "simulator", "worker"))
    code = re.search(r"http://127.0.0.1:1081/console/sign-in/link\?code=(\S+)", shown())
    assert code is not None
    assert Signer(DEMO_API_TOKEN).read("link", code[1]) is not None
    assert re.search(rf"MCP at http://127.0.0.1:1081/mcp, .*Bearer {DEMO_API_TOKEN}\n", shown())
    monkeypatch.setenv("SURELANE_HOST", "0.0.0.0")
    assert not off & environments()["operator"].keys()


def test_a_deployment_s_database_is_not_used_and_no_password_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    production = "postgresql://production/surelane"
    give(monkeypatch, DATABASE_URL=production, SURELANE_OPERATOR_DATABASE_URL=production)
    assert load_settings(DevSettings).database_url is None
    assert not any("production" in value for found in environments().values() for value in found.values())
    assert "DATABASE_URL, SURELANE_OPERATOR_DATABASE_URL" in set_aside()[0]
    uri = "postgresql://someone:hunter2@db/surelane"
    monkeypatch.setenv("SURELANE_DEV_DATABASE_URL", uri)
    assert "hunter2" not in shown(uri=uri)
    assert "http://127.0.0.1:1090/" in shown(uri=uri)


def test_a_project_s_handlers_are_used_unless_others_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def handlers(project: Project) -> str:
        return next(line for line in shown(project).splitlines() if line.startswith("  handlers"))

    assert environments()["worker"]["SURELANE_HANDLERS"] == "mybot.handlers:handlers"
    for name in ("simulator", "ingest", "worker", "operator"):
        assert environments()[name]["SURELANE_MANIFEST"] == str(MANIFEST)
    assert "those of the demonstration" in handlers(Project(Path()))
    assert "mybot.handlers:handlers" in handlers(PROJECT)
    monkeypatch.setenv("SURELANE_HANDLERS", "other:handlers")
    assert environments()["worker"]["SURELANE_HANDLERS"] == "other:handlers"
    assert "other:handlers" in handlers(Project(Path()))
    assert "other:handlers" in handlers(PROJECT)


def test_the_last_line_says_which_service_did_not_start_and_why() -> None:
    last = "No message is answered: the worker did not start: no such module. Its log is above."
    assert shown(worker="no such module").splitlines()[-1] == last


def test_two_tokens_are_enough_for_a_real_app(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = {"SLACK_APP_TOKEN": "xapp-1-mine", "SLACK_BOT_TOKEN": "xoxb-1"}
    give(monkeypatch, SLACK_API_URL="https://slack.com/api/", **tokens)
    found = environments()
    give(monkeypatch, **found["ingest"])
    assert load_settings(IngestSettings).signing_secrets == []
    assert "xapp-1-mine" not in found["simulator"].values()


@pytest.fixture
def taken() -> Iterator[str]:
    """Listen on a port, and keep the handlers of signals, which an event loop replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield str(listener.getsockname()[1])
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("name", "value", "socket_mode", "said"),
    [
        ("SURELANE_PORT", "http", False, "SURELANE_PORT"),
        ("SURELANE_WORKER_PRIVATE_PORT", None, False, "WORKER_PRIVATE_PORT: cannot listen on 127.0.0.1:"),
        ("SLACK_API_URL", "https://slack.test/api/", True, "unset SLACK_API_URL"),
        (
            "SLACK_API_URL",
            "https://slack.com/api/",
            False,
            "SLACK_APP_TOKEN (or SLACK_SIGNING_SECRET) and SLACK_BOT_",
        ),
        ("SLACK_API_URL", "slack", False, "SLACK_API_URL is not an http or https URL"),
    ],
)
def test_settings_that_cannot_be_used_end_it_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    taken: str,
    name: str,
    value: str | None,
    socket_mode: bool,
    said: str,
) -> None:
    from surelane_dev.system import main  # noqa: PLC0415 - slow to import

    monkeypatch.chdir(tmp_path)
    give(monkeypatch, SURELANE_DATA_DIR=str(tmp_path / "pg"), **{name: value or taken})
    assert main(socket_mode=socket_mode) == 2
    assert said in capsys.readouterr().out
    assert not (tmp_path / "pg").exists()


HOST = "127.0.0.1"


def test_a_port_that_is_not_set_moves_when_it_is_taken_or_another_s_and_zero_means_any(taken: str) -> None:
    moved = choose(HOST, {"ingest": Wanted("SURELANE_PORT", None, int(taken))})["ingest"]
    assert moved not in (0, int(taken))
    wanted = free_port()
    first, second = Wanted("SURELANE_PORT", None, wanted), Wanted("SURELANE_SIMULATOR_PORT", wanted, 0)
    ports = choose(HOST, {"ingest": first, "simulator": second})
    assert ports["simulator"] == wanted
    assert ports["ingest"] != wanted
    assert choose(HOST, {"ingest": Wanted("SURELANE_PORT", 0, 8080)})["ingest"] > 0


def test_a_port_that_is_set_and_taken_is_named_and_an_address_that_is_not_ours(taken: str) -> None:
    with pytest.raises(SettingsError, match=f"SURELANE_PORT: cannot listen on {HOST}:{taken}"):
        choose(HOST, {"ingest": Wanted("SURELANE_PORT", int(taken), 8080)})
    with pytest.raises(SettingsError, match="SURELANE_PORT"):
        choose("192.0.2.1", {"ingest": Wanted("SURELANE_PORT", 8080, 8080)})


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("postgresql://postgres@/postgres?host=/data/18", "postgresql://surelane@/app?host=/data/18"),
        ("postgresql://postgres:x@db:5433/postgres", "postgresql://surelane:surelane@db:5433/app"),
        ("postgresql://db/postgres?sslmode=require", "postgresql://surelane:surelane@db/app?sslmode=require"),
    ],
)
def test_the_server_stays_the_same(uri: str, expected: str) -> None:
    assert uri_of(uri, role="surelane", database="app") == expected
