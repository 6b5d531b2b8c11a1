"""The whole system in containers answers a mention that comes in over HTTP."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
import yaml

from tests.deploy.commands import ROOT, run
from tests.deploy.compose import PRODUCTION, SECRETS, Project, addresses, project
from tests.scenario import answered_once, history_is_hypertable

pytestmark = [pytest.mark.container, pytest.mark.timeout(420), pytest.mark.usefixtures("images")]


TOKEN = "a-token-of-the-operators"


@pytest.fixture(scope="module")
def system(images: dict[str, str]) -> Iterator[Project]:  # noqa: ARG001 - built before
    with project(env={"SURELANE_API_TOKEN": TOKEN}) as running:
        running.compose("up", "--detach", "--wait", "--wait-timeout=180")
        yield running


async def test_a_mention_is_answered_and_kept_in_a_hypertable(system: Project) -> None:
    await answered_once(system.system)
    assert await history_is_hypertable(system.system)


async def test_the_operators_api_answers_on_a_port_of_its_own_behind_its_token(system: Project) -> None:
    url = f"http://127.0.0.1:{system.env['SURELANE_OPERATOR_PORT']}/v1/jobs?limit=1"
    given = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession() as session:
        async with session.get(url) as refused, session.get(url, headers=given) as answered:
            assert (refused.status, answered.status) == (401, 200)
        async with session.get(f"{system.system.ingest}/v1/jobs", headers=given) as hidden:
            assert hidden.status == 404


def test_an_installation_without_a_database_uses_a_given_one(system: Project, tmp_path: Path) -> None:
    """It uses the database of the other installation here, which thereby gets another worker."""
    (tmp_path / "reached.yaml").write_text(
        f"networks: {{database: !override {{external: true, name: '{system.name}_database'}}}}\n"
        "services: {migrate: {networks: !override [database]}}\n"
    )
    slack = {name: value for name, value in SECRETS.items() if name.startswith("SLACK_")}
    before = int(system.query("select count(*) from agent.worker where died_at is null"))
    files = ("compose.yaml", "compose.external.yaml", str(tmp_path / "reached.yaml"))
    with project(*files, env={**slack, **addresses("demo", "db")}) as running:
        running.compose("up", "--detach", "--wait", "--wait-timeout=180")
        assert int(system.query("select count(*) from agent.worker where died_at is null")) == before + 1
        assert "db" not in running.compose("ps", "--services").split()


async def test_the_data_outlives_the_containers(system: Project) -> None:
    await answered_once(system.system)
    before = int(system.query("select count(*) from agent.event_hist"))
    await asyncio.to_thread(system.compose, "down", "--timeout=20")
    await asyncio.to_thread(system.compose, "up", "--detach", "--wait", "--wait-timeout=180")
    assert int(system.query("select count(*) from agent.event_hist")) >= before
    await answered_once(system.system)


def test_services_end_by_themselves_when_told_to_stop(system: Project) -> None:
    services = ("ingest", "worker", "simulator")
    system.compose("stop", *services)
    listed = system.compose("ps", "--all", "--format={{.Service}} {{.ExitCode}}", *services)
    codes = dict(line.split() for line in listed.splitlines())
    assert (codes["ingest"], codes["worker"]) == ("0", "0")
    assert codes["simulator"] != "137", "it had to be killed"
    system.compose("up", "--detach", "--wait", "--wait-timeout=180")


def test_accounts_have_no_more_rights_than_they_need(system: Project) -> None:
    roles = system.query(
        "select string_agg(rolname, ' ' order by rolname) from pg_roles"
        " where rolname ~ '^(surelane|agent)' and (rolsuper or rolcreatedb or rolreplication or rolbypassrls)"
    )
    assert roles == ""
    assert system.query("select has_database_privilege('public', 'surelane', 'connect')") == "f"
    assert system.query("select tableowner from pg_tables where schemaname = 'agent' limit 1") == "surelane"


def test_the_scaling_query_can_be_asked_by_an_operator(system: Project) -> None:
    manifests = yaml.safe_load_all((ROOT / "k8s/components/keda/scaling.yaml").read_text())
    (scaled,) = (manifest for manifest in manifests if manifest["kind"] == "ScaledObject")
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    assert int(system.query(query, role="surelane_operator")) >= 0


def test_the_production_file_alone_refuses_to_start_with_an_empty_secret() -> None:
    """As ``.env`` is when it was copied and not filled in."""
    with project(PRODUCTION, env={**SECRETS, "SLACK_BOT_TOKEN": "", "POSTGRES_PASSWORD": " "}) as refused:
        given = ("-f", PRODUCTION, "--env-file", "/dev/null", "-p", refused.name, "up", "-d")
        assert run("docker", "compose", *given, env=refused.env, within=60, check=False).returncode != 0
        assert refused.compose("ps", "--format={{.Service}}", "--status=running") == ""
        assert "set in .env: POSTGRES_PASSWORD, SLACK_BOT_TOKEN" in refused.compose("logs", "settings")
