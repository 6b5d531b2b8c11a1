"""`make up`: comes up, answers, and leaves nothing behind, however it ends."""

import asyncio
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path

import aiohttp
import asyncpg
import psutil  # type: ignore[import-untyped]
from dev.up import ECHO

from tests.processes import until
from tests.scenario import answered_once
from tests.system.up import Up, leftovers, up


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


async def test_a_message_is_answered_and_a_second_run_keeps_it(tmp_path: Path) -> None:
    async with up(tmp_path / "pg") as first:
        await first.ready()
        assert await status(f"{first.page}/") == 200
        assert len({os.getsid(process.pid) for process in first.family if _alive(process)}) > 4
        await answered_once(first.system)
        assert await first.end() == 0
        await gone(first)
        assert leftovers(tmp_path) == []
    async with up(tmp_path / "pg") as second:
        await second.ready()
        assert await second.system.query("select count(*) from agent.event_hist") == "1"
        assert await second.end(signal.SIGINT) == 0
        await gone(second)
        assert leftovers(tmp_path) == []


async def test_each_service_connects_as_its_own_role(tmp_path: Path) -> None:
    async with up(tmp_path / "pg") as system:
        await system.ready()
        roles = await system.system.query(
            "select string_agg(distinct application_name || ' as ' || usename, ', ') from pg_stat_activity"
            " where application_name in ('surelane-ingest', 'surelane-worker')"
        )
        assert "surelane-ingest as surelane_ingest" in roles
        assert "surelane-worker as surelane_worker" in roles
        assert await system.system.query("select rolsuper from pg_roles where rolname = user") == "False"


async def test_a_port_in_use_is_named_and_nothing_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        async with up(tmp_path / "pg", {"SURELANE_WORKER_PRIVATE_PORT": str(port)}) as system:
            assert await system.child.wait() == 2
    assert f"SURELANE_WORKER_PRIVATE_PORT: cannot listen on 127.0.0.1:{port}" in system.shown
    assert not exists(tmp_path / "pg")


async def test_settings_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    async with up(tmp_path / "pg", {"SURELANE_PORT": "http"}) as system:
        assert await system.child.wait() == 2
    assert "SURELANE_PORT" in system.shown


async def test_a_second_one_on_the_same_data_is_refused(tmp_path: Path) -> None:
    async with up(tmp_path / "pg") as first:
        await first.ready()
        async with up(tmp_path / "pg") as second:
            assert await second.child.wait() == 1
        assert "in use by another `make up`" in second.shown
        assert await status(f"{first.page}/") == 200


async def test_a_service_that_dies_ends_the_rest(tmp_path: Path) -> None:
    async with up(tmp_path / "pg") as system:
        await system.ready()
        system.member("surelane_worker").kill()
        assert await system.child.wait() == 1
        await gone(system)
    assert "worker ended with code -9" in system.shown
    assert leftovers(tmp_path) == []


async def test_nothing_survives_a_killed_supervisor(tmp_path: Path) -> None:
    async with up(tmp_path / "pg") as killed:
        await killed.ready()
        killed.child.process.kill()
        await gone(killed)
    async with up(tmp_path / "pg") as system:
        await system.ready()
        assert await system.end() == 0


async def test_a_crash_of_everything_does_not_stop_the_next_start(tmp_path: Path) -> None:
    async with up(tmp_path / "pg") as killed:
        await killed.ready()
        for kill in (psutil.Process.suspend, psutil.Process.kill):  # first, so that nobody can tidy up
            for process in killed.family:
                with suppress(psutil.NoSuchProcess):
                    kill(process)
        await gone(killed)
    assert "postmaster.pid" in leftovers(tmp_path)
    async with up(tmp_path / "pg") as system:
        await system.ready()
        assert await system.end() == 0
    assert leftovers(tmp_path) == []


async def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    async with up(tmp_path / "pg") as system:
        await system.ready()
        system.member("surelane_worker").suspend()  # it cannot drain
        system.child.process.send_signal(signal.SIGINT)
        await until(lambda: "ending" in system.shown, what="the first signal")
        await asyncio.sleep(2 * ECHO)
        async with asyncio.timeout(20):
            assert await system.end() == 130
        await gone(system)
    assert leftovers(tmp_path) == []


async def test_a_database_that_is_given_is_used(tmp_path: Path, empty_database: str) -> None:
    async with up(tmp_path / "pg", {"DATABASE_URL": empty_database}) as system:
        await system.ready()
        system.child.process.send_signal(signal.SIGTERM)  # as `make` passes on what its whole group was sent
        assert await system.end() == 0
    assert not exists(tmp_path / "pg")
    assert "Unknown child" not in system.shown
    connection = await asyncpg.connect(empty_database)
    assert await connection.fetchval("select count(*) from agent.worker") == 0, "all have retired"
    assert await connection.fetchval("select version from agent.schema_version()") == "0.1.0"
    await connection.close()


async def test_a_long_directory_name_is_no_obstacle(tmp_path: Path) -> None:
    data = tmp_path / ("a" * 60) / ("b" * 60)
    async with up(data) as system:
        await system.ready()
        assert str(data) not in system.database
        assert await system.system.query("select 1") == "1"
        directory = system.database.partition("host=")[2]
        assert await system.end() == 0
    assert not exists(Path(directory))
