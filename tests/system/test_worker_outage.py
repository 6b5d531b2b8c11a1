"""If the database goes away at any statement and comes back, the worker goes on and loses nothing."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

import pytest

from surelane.calls import DRIVER_ERRORS
from tests.processes import Service, until
from tests.system.restartable import NAME, Restartable, restartable
from tests.system.worker import claimed, ended, enqueue, live, worker

ENDS = "select count(*) from agent.event_hist where outcome = 'completed'"
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


def still_runs(service: Service) -> bool:
    return service.child.exit_code is None


async def test_worker_started_before_the_database_waits_for_it(server: Restartable) -> None:
    await server.stop()
    async with worker(server.uri(), ready="") as running:
        await until(
            lambda: any("waiting for the database" in line for line in running.output), what="the wait"
        )
        await server.start()
        await until(lambda: any('"working"' in line for line in running.output), within=60, what="the start")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["fast", "immediate"])
async def test_restarts_under_load_lose_nothing(server: Restartable, how: signal.Signals) -> None:
    async with worker(server.uri(), SURELANE_LEASE="5s") as running:
        stop, stored = asyncio.Event(), list[int]()
        loading = asyncio.create_task(load(server, stop, stored))
        for _ in range(3):
            await stored_more(stored)
            await server.restart(how)
        await stored_more(stored)
        stop.set()
        await loading
        await all_end(server, stored)
        assert still_runs(running)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["fast", "immediate"])
async def test_a_restart_costs_no_running_event_its_attempt(server: Restartable, how: signal.Signals) -> None:
    """All sessions are lost at once, and no worker is dead."""
    async with worker(server.uri()), worker(server.uri()):
        async with server.connected() as connection:
            running = [await enqueue(connection, "sleep", {"seconds": 2}) for _ in range(8)]
            for identity in running:
                await claimed(connection, identity)
        await server.restart(how)
        async with server.connected() as connection:
            rows = [await ended(connection, identity) for identity in running]
            dead = await connection.fetchval("select count(*) from agent.worker where died_at is not null")
    assert [(row["outcome"], row["attempts"]) for row in rows] == [("completed", 1)] * 8
    assert dead == 0


async def test_killed_connections_under_load_lose_nothing(server: Restartable) -> None:
    async with worker(server.uri(), SURELANE_LEASE="5s") as running:
        stop, stored = asyncio.Event(), list[int]()
        loading = asyncio.create_task(load(server, stop, stored))
        for _ in range(20):
            await stored_more(stored)
            await server.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'surelane-worker'"
            )
        stop.set()
        await loading
        await all_end(server, stored)
        assert still_runs(running)


async def test_database_that_hangs_is_outlasted(server: Restartable) -> None:
    async with worker(server.uri()) as running:
        stop, stored = asyncio.Event(), list[int]()
        loading = asyncio.create_task(load(server, stop, stored))
        await stored_more(stored)
        server.freeze()
        await asyncio.sleep(2)  # how long the fault lasts
        server.thaw()
        stop.set()
        await loading
        await all_end(server, stored)
        assert still_runs(running)


async def test_outcomes_wait_while_the_server_is_read_only(server: Restartable) -> None:
    """A connection made meanwhile stays read-only, as one to a standby does, so it is not used again."""
    async with worker(server.uri()) as running, server.connected() as connection:
        jobs = [await enqueue(connection, "sleep", {"seconds": 2}) for _ in range(8)]
        for identity in jobs:
            await claimed(connection, identity)
        await server.execute(f"alter database {NAME} set default_transaction_read_only = on")
        await server.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'surelane-worker'"
        )
        await until(lambda: any('"settles"' in line for line in running.output), what="a refused settle")
        before = await connection.fetchval(ENDS)
        await asyncio.sleep(READ_ONLY)  # nothing signals that nothing ends
        assert await connection.fetchval(ENDS) == before
        await server.execute(f"alter database {NAME} reset default_transaction_read_only")
        rows = [await ended(connection, identity) for identity in jobs]
    assert [(row["outcome"], len(row["claimed"])) for row in rows] == [("completed", 1)] * 8


async def test_handlers_stop_when_their_lease_runs_out_though_the_database_hangs(server: Restartable) -> None:
    async with worker(server.uri(), SURELANE_LEASE="1s", SURELANE_DRAIN_TIMEOUT="1s") as running:
        async with server.connected() as connection:
            identity = await enqueue(connection, "sleep", {"seconds": 60})
            first = (await claimed(connection, identity))["heartbeat_at"]
            # We may see the claim before the worker does. Its heartbeat shows that it knows it.
            while (await live(connection, identity))["heartbeat_at"] == first:  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0.02)
        server.freeze()
        try:
            await until(lambda: any("lease lost" in line for line in running.output), what="the loss")
        finally:
            server.thaw()
    async with server.connected() as connection:
        await connection.execute("truncate agent.event")


async def test_claim_that_is_answered_after_its_lease_is_given_back_unspent(server: Restartable) -> None:
    async with worker(server.uri(), SURELANE_LEASE="1s", SURELANE_POLL_INTERVAL="10s"):
        async with server.connected() as connection:
            identity = await enqueue(connection, "echo", run_in=4)
        await asyncio.sleep(2)  # in which the notified worker has learned when to claim it
        server.freeze()
        await asyncio.sleep(4.5)  # past its time, and past a lease from then on
        server.thaw()
        async with server.connected() as connection:
            row = await ended(connection, identity)
    assert (row["outcome"], row["attempts"]) == ("completed", 1)
    assert len(row["claimed"]) >= 2


async def test_outage_is_logged_once_when_it_begins_and_once_when_it_ends(server: Restartable) -> None:
    async with worker(server.uri(), SURELANE_POLL_INTERVAL="200ms") as running:
        await server.stop()
        await until(lambda: said(running), what="the outage")
        await asyncio.sleep(2)  # in which it tries repeatedly
        await server.start()
        await until(lambda: len(said(running)) > 1, what="the recovery")
        begun, over = said(running)
    assert ("unavailable" in begun, "available again" in over) == (True, True)


def said(running: Service) -> list[str]:
    """Return the worker's log lines about its claims, which it tries once per poll interval."""
    return [line for line in running.output if '"claims"' in line]
