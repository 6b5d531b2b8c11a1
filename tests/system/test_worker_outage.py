"""If the database goes away at any statement and comes back, the worker goes on and loses nothing."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

import pytest

from surelane.calls import DRIVER_ERRORS
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
