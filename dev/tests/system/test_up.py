"""`surelane dev` starts, answers, and leaves nothing behind after any end."""

import os
import re
import signal
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import asyncpg
import psutil  # type: ignore[import-untyped]
import pytest

from dev.tests.system.up import LONG, Up, answer_to, leftovers, say, status, up
from surelane_dev.data_directory import MAJOR
from surelane_dev.new import write_project
from surelane_dev.simulator.client import SimulatorClient
from tests.processes import until
from tests.scenario import answered_once, eventually

BOLT = Path(__file__).parents[3] / "examples/bolt"
BAKERY = "T0BAKERY01"
pytestmark = pytest.mark.timeout(900)


def exists(path: str | Path) -> bool:
    return Path(path).exists()


@pytest.mark.promise("up")
async def test_a_new_project_answers_a_message_and_a_stop_leaves_nothing_behind(tmp_path: Path) -> None:
    project, data = tmp_path / "mybot", tmp_path / ("a" * 60) / ("b" * 60)
    write_project(project)
    async with up(data, project=project) as system:
        await system.ready()
        assert str(data) not in system.database, "its socket's path would be too long"
        socket_directory = system.database.partition("host=")[2]
        async with SimulatorClient(system.page) as slack:
            assert await answer_to(slack, "hello") == "You said: hello"
        assert system.output[0].startswith("Surelane starts here: "), "before anything else is imported"
        programs = [each for each in system.family if "surelane_dev.program" in " ".join(each.cmdline())]
        assert len(programs) == 2, "all services, and the spare"
        # `make` passes on a SIGTERM that its whole group got. The second one does not cut the drain short.
        worker = system.member("surelane_dev.program worker")
        worker.suspend()
        system.child.process.send_signal(signal.SIGTERM)
        await system.shows("SIGTERM: ending")
        system.child.process.send_signal(signal.SIGTERM)
        worker.resume()
        assert await system.child.wait() == 0
        assert re.search(r"^worker .*\bstopped\b", system.shown, re.MULTILINE)
        assert "child process" not in system.shown
        await system.gone()
    assert leftovers(tmp_path) == []
    assert not exists(socket_directory)


@pytest.mark.slow
async def test_messages_are_kept_over_crashes_and_nothing_survives_when_it_is_killed(tmp_path: Path) -> None:
    data = tmp_path / ("a" * 60) / ("b" * 60)
    async with up(
        data, {"SURELANE_POLL_INTERVAL": "0.2s"}, options=("--socket-mode", "--installs")
    ) as crashed:
        await crashed.ready()
        assert "Socket Mode " in crashed.shown
        await assert_each_service_has_a_role_and_a_session(crashed)
        await assert_an_assistant_connects_as_it_is_told(crashed)
        await assert_people_see_the_queue(crashed)
        await assert_the_app_is_installed_and_answers_by_socket_mode(crashed)
        await assert_history_has(crashed, 2)
        await until(
            lambda: "fresh bread" in (data / "simulator.json").read_text(), within=LONG
        )  # it is saved
        for kill in (psutil.Process.suspend, psutil.Process.kill):  # suspended, none can clean up
            for process in crashed.family:
                with suppress(psutil.NoSuchProcess):
                    kill(process)
        await crashed.gone()
    assert "postmaster.pid" in leftovers(tmp_path)
    env = {"SURELANE_HANDLERS": "app:app", "SLACK_BOT_TOKEN": "xoxb-mine"}
    async with up(data, env, project=BOLT) as second:
        await second.ready()
        await assert_history_has(second, 2)
        first = await assert_the_example_s_bolt_app_answers_without_any_secret(second)
        await assert_history_has(second, 3)
        second.member("/bin/postgres").kill()
        assert await second.child.wait() == 1
        await second.gone()
    assert "postgres ended with code -9" in second.shown
    # The last server ends in order: as PostgreSQL starts, it removes the shared memory that a killed one has left.
    async with up(data, options=("--installs",)) as killed:
        await killed.ready()
        await answered_once(killed.system)
        await assert_history_has(killed, 4)
        async with SimulatorClient(killed.page) as slack, SimulatorClient(killed.page, BAKERY) as bakery:
            assert await answer_to(slack, first) == f"Hello <@{first['user']}>!", "conversations are kept"
            assert "still there" in await answer_to(bakery, "still there"), "the key of its token is kept"
        killed.child.process.kill()
        await killed.gone()
    assert leftovers(tmp_path) == []


@pytest.mark.slow
async def test_an_agent_answers_on_a_given_database_and_a_second_ctrl_c_ends_it_at_once(
    tmp_path: Path, empty_database: str
) -> None:
    write_project(tmp_path / "helper", "agent")
    env = {"SURELANE_DEV_DATABASE_URL": empty_database, "SURELANE_DRAIN_TIMEOUT": "10m"}
    async with up(tmp_path / "pg", env, project=tmp_path / "helper", options=("--processes",)) as system:
        await system.ready()
        async with SimulatorClient(system.page) as slack:
            assert await answer_to(slack, "good day") == "You said: good day"
        system.member("surelane_dev.program worker").suspend()  # it cannot drain
        system.child.process.send_signal(signal.SIGINT)
        await system.shows("SIGINT: ending")
        assert await system.end(signal.SIGINT) == 130
        await system.gone()
    assert not exists(tmp_path / "pg" / MAJOR)
    connection = await asyncpg.connect(empty_database)
    version = await connection.fetchval("select version from agent.schema_version()")
    await connection.close()
    assert version == metadata.version("surelane")


async def assert_history_has(running: Up, events: int) -> None:
    """Wait for it: the bot replies before its event has ended."""
    count = "select count(*) from agent.event_hist"
    await eventually(lambda: running.system.query(count), str(events), within=LONG)


async def assert_each_service_has_a_role_and_a_session(running: Up) -> None:
    roles = await running.system.query(
        "select string_agg(distinct application_name || ' as ' || usename, ', ') from pg_stat_activity"
        " where application_name in ('surelane-ingest', 'surelane-worker', 'surelane-operator')"
    )
    for name in ("ingest", "operator", "worker"):
        assert f"surelane-{name} as surelane_{name}" in roles
    assert await running.system.query("select rolsuper from pg_roles where rolname = user") == "False"
    assert os.getsid(running.member("surelane_dev.program").pid) != os.getsid(running.child.process.pid)


async def assert_an_assistant_connects_as_it_is_told(running: Up) -> None:
    told = re.search(r"MCP at (http://\S+/mcp), with the header (\S+): (Bearer \S+)", running.shown)
    assert told is not None
    headers = {told[2]: told[3], "Accept": "application/json"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    async with aiohttp.request("POST", told[1], headers=headers, json=body) as response:
        tools = {tool["name"] for tool in (await response.json())["result"]["tools"]}
    assert {"find_message", "cancel_event"} <= tools


async def assert_people_see_the_queue(running: Up) -> None:
    """At the addresses that are shown: a link that signs in to the page, and the API's."""
    assert await status(f"{running.page}/") == 200
    api, token = running.found(r"operator's API +(\S+)/v1/jobs "), running.found(r"\(token (\S+)\)")
    assert f"operator {api}/," in running.found(r"private ports +(.+)$")
    link = running.found(r"operator's page +(\S+)$")
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        async with session.get(link) as page:
            assert "<title>" in await page.text()
        async with session.get(f"{api}/") as page:
            assert (page.status, page.url.path) == (200, "/console/")
        async with session.get(f"{api}/v1/jobs", headers={"Authorization": f"Bearer {token}"}) as jobs:
            assert jobs.status == 200


async def assert_the_app_is_installed_and_answers_by_socket_mode(running: Up) -> None:
    async with SimulatorClient(running.page) as slack, SimulatorClient(running.page, BAKERY) as bakery:
        assert "hello" in await answer_to(slack, "hello")
        assert (await slack.request("GET", "/control/sockets"))["connections"]
        await install(running, BAKERY)
        assert "fresh bread" in await answer_to(bakery, "fresh bread")


async def install(running: Up, team: str) -> None:
    """Install the app as a browser does."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{running.ingest}/slack/install?team={team}", allow_redirects=False) as begun:
            consent, cookie = begun.headers["Location"], begun.headers["Set-Cookie"].partition(";")[0]
        form = {"team": team, "decision": "approve"}
        async with session.post(consent, data=form, allow_redirects=False) as approved:
            back = approved.headers["Location"]
        assert parse_qs(urlsplit(back).query).keys() == {"code", "state"}
        async with session.get(back, headers={"Cookie": cookie}) as ended:
            assert "The app is installed in Bakery" in await ended.text()


async def assert_the_example_s_bolt_app_answers_without_any_secret(running: Up) -> dict[str, Any]:
    """The app reads SLACK_BOT_TOKEN when it is imported, and the real one is not given to it."""
    assert running.found("handlers +(.+)$") == "app:app"
    async with SimulatorClient(running.page) as slack:
        message = await say(slack, "hello")
        assert await answer_to(slack, message) == f"Hello <@{message['user']}>!"
    return message
