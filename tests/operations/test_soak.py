"""A system under steady load for as long as one likes, with kills and restarts: ``make soak MINUTES=60``.

It prints, minute by minute, what could grow: memory and file descriptors of the services that live all the time, and
the sizes of tables and indexes. In the end every acknowledged event is in history once, and ``surelane verify`` finds
nothing.
"""

import asyncio
import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import aiohttp
import psutil  # type: ignore[import-untyped]
import pytest

from tests.databases import as_role
from tests.operations.load import each_ended_once
from tests.processes import Service, service
from tests.system.ingest_client import Slack, mention, settings
from tests.system.restartable import Restartable, restartable
from tests.system.worker import environment

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]

MINUTES = float(os.environ.get("SURELANE_SOAK_MINUTES", "60"))
RATE = float(os.environ.get("SURELANE_SOAK_RATE", "20"))
"""Events per second."""
CHANNELS = 50
KILL_EVERY, RESTART_EVERY = 20.0, 240.0
"""Seconds between kills of a worker, and between immediate restarts of the database's server."""
WORKER = environment("", SURELANE_HANDLERS="tests.operations.soak_handlers:handlers")

COLUMNS = "minute, acknowledged, live, ingest MB, fds, worker MB, fds, event kB, its indexes kB, history MB"
COLUMNS += ", steps kB, dead rows"
SIZES = """
select (select count(*) from agent.event) as live, pg_relation_size('agent.event') / 1024 as heap
, pg_indexes_size('agent.event') / 1024 as indexes, pg_total_relation_size('agent.event_hist') / 1048576 as history
, pg_total_relation_size('agent.step') / 1024 as steps
, (select n_dead_tup from pg_stat_all_tables where relid = 'agent.event'::regclass) as dead
"""


@dataclass
class Soak:
    """A run: what was acknowledged, and what was done to the system."""

    server: Restartable
    acknowledged: set[str] = field(default_factory=set)
    kills: int = 0
    restarts: int = 0
    runs: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the server must run, and while it restarts."""

    async def traffic(self, slack: Slack) -> None:
        """Post mentions at the rate, and each again after a second until it is acknowledged, as Slack does."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as posting:
            for number in itertools.count():
                await asyncio.sleep(max(0.0, began + number / RATE - time.monotonic()))
                posting.create_task(self._post(slack, number))

    async def _post(self, slack: Slack, number: int) -> None:
        payload = mention(channel=f"C{number % CHANNELS}")
        while True:
            try:
                if (await slack.event(payload)).status == 200:
                    self.acknowledged.add(payload["event_id"])
                    return
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(1)

    async def mortal_worker(self) -> None:
        """Run a worker, kill it after a while, and start another one, again and again."""
        database = as_role(self.server.uri(), "surelane_worker")
        while True:
            async with service("surelane_worker", {**WORKER, "DATABASE_URL": database}, ready="") as running:
                await asyncio.sleep(random.uniform(0.5, 1.5) * KILL_EVERY)
                running.child.kill()
                await running.child.wait()
            self.kills += 1

    async def restart(self) -> None:
        """End the server at once, as a crash does, and start it again, repeatedly."""
        while True:
            await asyncio.sleep(random.uniform(0.5, 1.5) * RESTART_EVERY)
            async with self.runs:
                await self.server.restart(signal.SIGQUIT)
            self.restarts += 1

    async def row(self, minute: int, *lasting: Service) -> tuple[object, ...]:
        """Measure once."""
        async with self.runs, self.server.connected() as connection:
            sizes = await connection.fetchrow(SIZES)
        assert sizes is not None
        processes = [psutil.Process(each.process.pid) for each in lasting]
        used = [(process.memory_info().rss >> 20, process.num_fds()) for process in processes]
        return (minute, len(self.acknowledged), sizes[0], *itertools.chain(*used), *sizes[1:])


async def verify(server: Restartable) -> None:
    """Run ``surelane verify``."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "surelane_operator.cli", "verify",
        env={**os.environ, "DATABASE_URL": as_role(server.uri(), "surelane_operator")},
    )  # fmt: skip
    assert await process.wait() == 0


async def test_nothing_is_lost_and_nothing_grows(record: Callable[[tuple[object, ...]], None]) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(restartable())
        soak = Soak(server)
        login = {"DATABASE_URL": as_role(server.uri(), "surelane_worker")}
        worker = await stack.enter_async_context(service("surelane_worker", {**WORKER, **login}))
        ingest = await stack.enter_async_context(
            service("surelane_ingest", settings(as_role(server.uri(), "surelane_ingest")))
        )
        session = await stack.enter_async_context(aiohttp.ClientSession())
        slack = Slack(session, ingest.url)
        beside = [soak.traffic(slack), soak.mortal_worker(), soak.mortal_worker(), soak.restart()]
        tasks = [asyncio.create_task(each) for each in beside]
        for minute in range(1, max(2, round(MINUTES) + 1)):
            done, _ = await asyncio.wait(
                tasks, timeout=min(60.0, MINUTES * 60), return_when="FIRST_COMPLETED"
            )
            assert not done, done
            record(await soak.row(minute, ingest, worker))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with server.connected() as connection:
            await each_ended_once(connection, soak.acknowledged, within=600)
        assert soak.kills
        await verify(server)


@pytest.fixture
def record(capfd: pytest.CaptureFixture[str]) -> Callable[[tuple[object, ...]], None]:
    """Print a row of the table while the run goes on."""

    def show(row: tuple[object, ...]) -> None:
        with capfd.disabled():
            print("| " + " | ".join(str(value) for value in row) + " |", flush=True)  # noqa: T201

    show(tuple(COLUMNS.split(", ")))
    return show
