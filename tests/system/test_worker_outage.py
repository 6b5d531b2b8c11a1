"""If the database goes away at any statement and comes back, the worker goes on and loses nothing."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

import pytest

from surelane.calls import DRIVER_ERRORS
from tests.processes import until
from tests.system.restartable import NAME, Restartable, restartable
from tests.system.worker import claimed, ended, enqueue, worker

ENDS = "select count(*) from agent.event_hist where outcome = 'completed'"
END = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'surelane-worker'"
READ_ONLY = 6
"""Seconds for which the server goes on to refuse writes."""


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


async def stored_more(stored: list[int], number: int = 20) -> None:
    """Wait for a number of further acknowledged jobs."""
    goal = len(stored) + number
    await until(lambda: len(stored) >= goal, within=60, what=f"{goal} stored jobs")


async def all_end(server: Restartable, stored: list[int], within: float = 90) -> None:
    """Wait until every stored event is in history once."""
    async with server.connected() as connection, asyncio.timeout(within):
        while await connection.fetchval("select exists (select from agent.event)"):  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.05)
        rows = await connection.fetch(
            "select outcome, count(*) from agent.event_hist where id = any($1) group by outcome", stored
        )
    assert {row["outcome"]: row["count"] for row in rows} == {"completed": len(stored)}


async def test_worker_started_before_the_database_waits_for_it(server: Restartable) -> None:
    await server.stop()
    async with worker(server.uri(), ready="") as running:
        await until(
            lambda: any("waiting for the database" in line for line in running.output), what="the wait"
        )
        await server.start()
        await until(lambda: any('"working"' in line for line in running.output), within=60, what="the start")


async def test_restarts_lost_connections_and_a_server_that_hangs_lose_nothing(server: Restartable) -> None:
    async with worker(server.uri(), SURELANE_LEASE="5s") as running:
        stop, stored = asyncio.Event(), list[int]()
        loading = asyncio.create_task(load(server, stop, stored))
        for how in (signal.SIGINT, signal.SIGQUIT):
            await stored_more(stored)
            await server.restart(how)
        for _ in range(5):
            await stored_more(stored)
            await server.execute(END)
        await stored_more(stored)
        server.freeze()
        await asyncio.sleep(2)  # how long the fault lasts
        server.thaw()
        await stored_more(stored)
        stop.set()
        await loading
        await all_end(server, stored)
        assert running.child.exit_code is None


async def test_outcomes_wait_while_the_server_is_read_only(server: Restartable) -> None:
    """A connection made meanwhile stays read-only, as one to a standby does, so it is not used again."""
    async with worker(server.uri()) as running, server.connected() as connection:
        jobs = [await enqueue(connection, "sleep", {"seconds": 2}) for _ in range(8)]
        for identity in jobs:
            await claimed(connection, identity)
        await server.execute(f"alter database {NAME} set default_transaction_read_only = on")
        await server.execute(END)
        await until(lambda: any('"settles"' in line for line in running.output), what="a refused settle")
        before = await connection.fetchval(ENDS)
        await asyncio.sleep(READ_ONLY)  # nothing signals that nothing ends
        assert await connection.fetchval(ENDS) == before
        await server.execute(f"alter database {NAME} reset default_transaction_read_only")
        rows = [await ended(connection, identity) for identity in jobs]
    assert [(row["outcome"], len(row["claimed"])) for row in rows] == [("completed", 1)] * 8
