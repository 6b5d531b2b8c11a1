"""Every acknowledged event ends in history once, although workers are killed at random and the server crashes."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator

import pytest

from tests.processes import until
from tests.system.restartable import Restartable, restartable
from tests.system.test_worker_outage import all_end, load, stored_more
from tests.system.worker import worker

ROUNDS = 3


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[Restartable]:
    async with restartable() as started:
        yield started


async def replica(server: Restartable, kills: asyncio.Queue[None], stop: asyncio.Event) -> None:
    """Run a worker, and start it again after each kill, as a deployment does."""
    while not stop.is_set():
        async with worker(server.uri(), ready="", SURELANE_LEASE="3s", SURELANE_MAX_ATTEMPTS="20") as running:
            waits = [asyncio.create_task(kills.get()), asyncio.create_task(stop.wait())]
            done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            if waits[0] in done:
                running.process.send_signal(signal.SIGKILL)
                await running.child.wait()
            else:  # it may have started just now, without its signal handler
                await until(
                    lambda: any('"working"' in line for line in running.output), within=60, what="its start"
                )


async def test_killed_workers_and_a_crashing_server_lose_nothing_and_double_nothing(
    server: Restartable,
) -> None:
    stop_loading, stop_working = asyncio.Event(), asyncio.Event()
    kills: list[asyncio.Queue[None]] = [asyncio.Queue(), asyncio.Queue()]
    replicas = [asyncio.create_task(replica(server, queue, stop_working)) for queue in kills]
    stored: list[int] = []
    loading = asyncio.create_task(load(server, stop_loading, stored))
    chance = random.Random(7)
    for _ in range(ROUNDS):
        await asyncio.sleep(2 + chance.random())  # the kills come at any moment of the work
        kills[chance.randrange(2)].put_nowait(None)
        await asyncio.sleep(chance.random())
        await server.restart(signal.SIGQUIT)
    await stored_more(stored, 100)
    stop_loading.set()
    await loading

    await all_end(server, stored)
    async with server.connected() as connection:
        doubled = await connection.fetchval("select count(*) - count(distinct id) from agent.event_hist")
    stop_working.set()
    await asyncio.gather(*replicas)
    assert doubled == 0
