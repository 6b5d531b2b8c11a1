"""If the database goes away at any statement and comes back, the worker goes on and loses nothing."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from surelane.calls import DRIVER_ERRORS
from surelane_operator.doctor import Level, verify
from tests.processes import until
from tests.sql.migrations import becomes
from tests.system.restartable import Restartable, restartable
from tests.system.worker import enqueue, worker

KILL = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'surelane-worker'"


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[Restartable]:
    async with restartable() as started:
        yield started


async def load(server: Restartable, stop: asyncio.Event, stored: list[int]) -> None:
    """Store jobs until ``stop``, through every failure of the server. ``stored`` are the acknowledged ones."""
    while not stop.is_set():
        with contextlib.suppress(*DRIVER_ERRORS):
            async with server.connected() as connection:
                while not stop.is_set():
                    stored.append(await enqueue(connection, "short", group_key=f"T:C:{len(stored) % 50}"))
                    stored.append(await enqueue(connection, "nothing"))
                    await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)


async def test_a_server_that_is_late_cuts_restarts_or_hangs_loses_nothing(server: Restartable) -> None:
    await server.stop()
    async with worker(server.uri(), ready="", SURELANE_LEASE="5s") as running, asyncio.TaskGroup() as group:
        await until(
            lambda: any("waiting for the database" in line for line in running.output), what="the wait"
        )
        await server.start()
        await until(lambda: any('"working"' in line for line in running.output), within=60, what="the start")
        stop, stored = asyncio.Event(), list[int]()
        loading = group.create_task(load(server, stop, stored))
        for fault in ("kill", "fast", "kill", "immediate", "kill", "hang", "none"):
            goal = len(stored) + 20
            await until(lambda goal=goal: len(stored) >= goal, within=60, what=f"{goal} stored jobs")  # type: ignore[misc]
            if fault == "kill":
                await server.execute(KILL)
            elif fault == "hang":
                server.freeze()
                await asyncio.sleep(2)  # how long the fault lasts
                server.thaw()
            elif fault != "none":
                await server.restart(signal.SIGINT if fault == "fast" else signal.SIGQUIT)
        stop.set()
        await loading
        async with server.connected() as connection:
            await becomes(connection, "select not exists (select from agent.event)", within=90)
            query = "select outcome from agent.event_hist where id = any($1)"
            rows = await connection.fetch(query, stored)
        assert [row["outcome"] for row in rows] == ["completed"] * len(stored)
        assert running.child.exit_code is None


HOLDER = """select l.pid from agent.worker as w join pg_locks as l on l.objid = w.session::oid
where l.locktype = 'advisory' and l.classid = agent.session_class()::oid and w.died_at is null limit 1"""


@pytest.mark.parametrize(("all_of_them", "within"), [(False, 10), (True, 20)])
async def test_connections_that_are_cut_cost_no_event_and_no_order_and_some_seconds(
    server: Restartable, all_of_them: bool, within: float
) -> None:
    async with worker(server.uri()), worker(server.uri()), server.connected() as connection:
        await becomes(connection, "select count(session) = 2 from agent.worker where died_at is null")
        stored, at = list[int](), None
        for nth in range(60):
            if nth == 30:
                at, pid = await connection.fetchval("select agent.clock()"), await connection.fetchval(HOLDER)
                await server.execute(KILL if all_of_them else f"select pg_terminate_backend({pid})")
            stored += [await enqueue(connection, "nothing", group_key=f"T:C:{group}") for group in range(5)]
            await asyncio.sleep(0.05)  # the fault falls amid traffic
        ended = "from agent.event_hist where id = any($1)"
        await becomes(connection, f"select count(distinct id) = {len(stored)} {ended}", stored)
        assert await connection.fetchval(f"select count(*) {ended}", stored) == len(stored), "each once"
        late = f"max(finished_at - greatest(enqueued_at, $2)) filter (where finished_at > $2) {ended}"
        assert await connection.fetchval(f"select {late}", stored, at) <= timedelta(seconds=within)
        order = "row_number() over (partition by group_key order by finished_at, id) as ended"
        order += f", row_number() over (partition by group_key order by id) as began {ended}"
        wrong = f"select count(*) from (select {order}) as o where ended <> began"
        assert await connection.fetchval(wrong, stored) == 0
        assert [each for each in await verify(connection) if each.level is Level.PROBLEM] == []
