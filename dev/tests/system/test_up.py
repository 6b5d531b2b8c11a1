"""`surelane dev` starts, answers, and leaves nothing behind after any end."""

import os
import re
import signal
import socket
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import aiohttp
import asyncpg
import psutil  # type: ignore[import-untyped]

from dev.tests.system.up import Up, leftovers, up
from surelane_dev.simulator.client import SimulatorClient
from tests.processes import until
from tests.scenario import answered_once

BOLT = Path(__file__).parents[3] / "examples/bolt"


async def gone(system: Up, within: float = 60) -> None:
    await until(
        lambda: not [process for process in system.family if _alive(process)],
        within=within,
        what="the end of every process",
    )


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def exists(path: Path) -> bool:
    return path.exists()


async def status(url: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status


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


async def test_a_message_is_answered_and_kept_over_crashes_and_a_stop_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    data = tmp_path / ("a" * 60) / ("b" * 60)
    async with up(data) as crashed:
        await crashed.ready()
        await assert_works_in_a_long_directory_with_a_role_for_each_service_and_keeps_another_out(
            crashed, data
        )
        assert await status(f"{crashed.page}/") == 200
        await assert_an_assistant_connects_as_it_is_told(crashed)
        await assert_people_see_the_queue(crashed)
        assert len({os.getsid(process.pid) for process in crashed.family if _alive(process)}) > 4
        await answered_once(crashed.system)
        for kill in (
            psutil.Process.suspend,
            psutil.Process.kill,
        ):  # suspend them first, so that none can clean up
            for process in crashed.family:
                with suppress(psutil.NoSuchProcess):
                    kill(process)
        await gone(crashed)
    assert "postmaster.pid" in leftovers(tmp_path)
    async with up(data) as second:
        await second.ready()
        assert await second.system.query("select count(*) from agent.event_hist") == "1"
        second.member("/bin/postgres").kill()
        assert await second.child.wait() == 1
        await gone(second)
    assert "postgres ended with code -9" in second.shown
    # The last one is stopped: as PostgreSQL starts, it removes the shared memory that a killed one has left.
    async with up(data) as stopped:
        await stopped.ready()
        assert await stopped.system.query("select count(*) from agent.event_hist") == "1"
        socket_directory = stopped.database.partition("host=")[2]
        # `make` passes on a SIGTERM that its whole group got. The second one does not cut the drain short.
        worker = stopped.member("surelane_dev.program worker")
        worker.suspend()
        stopped.child.process.send_signal(signal.SIGTERM)
        await until(lambda: "SIGTERM: ending" in stopped.shown, what="the first signal")
        stopped.child.process.send_signal(signal.SIGTERM)
        worker.resume()
        assert await stopped.child.wait() == 0
        assert re.search(r"^worker .*\bstopped\b", stopped.shown, re.MULTILINE)
        assert "child process" not in stopped.shown
        await gone(stopped)
        assert leftovers(tmp_path) == []
    assert not exists(Path(socket_directory))


async def test_a_port_in_use_is_named_and_nothing_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        async with up(tmp_path / "pg", {"SURELANE_WORKER_PRIVATE_PORT": str(port)}) as system:
            assert await system.child.wait() == 2
    assert f"SURELANE_WORKER_PRIVATE_PORT: cannot listen on 127.0.0.1:{port}" in system.shown
    assert not exists(tmp_path / "pg")


async def test_a_worker_that_does_not_start_is_the_last_line(tmp_path: Path) -> None:
    async with up(tmp_path / "data", {"SURELANE_HANDLERS": "os:nothing"}) as system:
        await until(lambda: "No message is answered" in system.shown, within=120, what="the last line")
        assert "Surelane is up" not in system.shown
        assert (
            "the worker did not start: SURELANE_HANDLERS: os has no attribute 'nothing'" in system.output[-1]
        )
        assert await system.end() == 0


async def test_the_example_s_bolt_app_answers_without_any_secret(tmp_path: Path) -> None:
    """The app reads SLACK_BOT_TOKEN when it is imported, and the real one is not given to it."""
    env = {"SURELANE_HANDLERS": "app:app", "SLACK_BOT_TOKEN": "xoxb-mine"}
    async with up(tmp_path / "pg", env, project=BOLT) as system:
        await system.ready()
        assert system.found("handlers +(.+)$") == "app:app"
        async with SimulatorClient(system.page) as slack:
            message = (await slack.say("hello", channel="general", mention=True))["message"]
            assert (await slack.reply(message, 90))["text"] == f"Hello <@{message['user']}>!"
        assert await system.end() == 0


async def test_settings_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    async with up(tmp_path / "pg", {"SURELANE_PORT": "http"}) as system:
        assert await system.child.wait() == 2
    assert "SURELANE_PORT" in system.shown


async def test_a_database_that_is_given_is_used_and_a_second_ctrl_c_ends_it_at_once(
    tmp_path: Path, empty_database: str
) -> None:
    env = {"SURELANE_DEV_DATABASE_URL": empty_database, "SURELANE_DRAIN_TIMEOUT": "10m"}
    async with up(tmp_path / "pg", env) as system:
        await system.ready()
        system.member("surelane_dev.program worker").suspend()  # it cannot drain
        system.child.process.send_signal(signal.SIGINT)
        await until(lambda: "SIGINT: ending" in system.shown, what="the first signal")
        assert await system.end(signal.SIGINT) == 130
        await gone(system)
    assert not exists(tmp_path / "pg")
    connection = await asyncpg.connect(empty_database)
    assert await connection.fetchval("select version from agent.schema_version()") == metadata.version(
        "surelane"
    )
    await connection.close()


async def assert_works_in_a_long_directory_with_a_role_for_each_service_and_keeps_another_out(
    system: Up, data: Path
) -> None:
    roles = await system.system.query(
        "select string_agg(distinct application_name || ' as ' || usename, ', ') from pg_stat_activity"
        " where application_name in ('surelane-ingest', 'surelane-worker', 'surelane-operator')"
    )
    assert "surelane-ingest as surelane_ingest" in roles
    assert "surelane-worker as surelane_worker" in roles
    assert "surelane-operator as surelane_operator" in roles
    assert await system.system.query("select rolsuper from pg_roles where rolname = user") == "False"
    async with up(data) as another:
        assert await another.child.wait() == 1
    assert "in use by another `surelane dev`" in another.shown
    assert str(data) not in system.database


async def test_when_it_is_killed_nothing_survives(tmp_path: Path) -> None:
    async with up(tmp_path / "pg") as killed:
        await killed.ready()
        killed.child.process.kill()
        await gone(killed)
    assert leftovers(tmp_path) == []
