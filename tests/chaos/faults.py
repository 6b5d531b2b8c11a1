"""Cause faults. Each ends by itself and returns the time from which the system can recover."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path

from tests.chaos.reached import Reached
from tests.deploy.commands import REGISTRY, run, version

Fault = Callable[[Reached], Awaitable[float]]

HELPER = f"{REGISTRY}surelane-worker:{version()}"
"""An image with Python and asyncpg, which the demonstration has built."""

DOWN = 10
"""Seconds for which the database is stopped."""
FROZEN = 35
"""Seconds for which the database is frozen. A worker gives up a statement after 30 s."""
AWAY, SHORTLY, LONG = 10, 5, 20
"""Seconds for which a worker is cut off or frozen: twice its short lease; half of that; four times that."""
FULL, HELD = 15, 10
"""Seconds for which connections are taken, and an operator's transaction locks events."""


LOCK_WAITING = f"""
with locked as materialized (select id from agent.event where claimed_by is null for update skip locked)
, counted as materialized (select count(*) as events from locked)
select events, case when events > 0 then pg_sleep({HELD}) end from counted
"""
"""Locks the waiting events, if there are any, and keeps the transaction open.

Without ``skip locked`` it would wait for an event that is just being claimed, and then keep its lock though the event
no longer waits. No lease outlives that.
"""

BUSY = """
select split_part(claimed_by, ':', 1) from agent.event
where claimed_by is not null and clock_timestamp() - claimed[cardinality(claimed)] between '3 s' and '4.5 s'
limit 1
"""
"""A query for the host of a worker halfway through a slow event, which it would complete within its lease."""


async def worker_killed(project: Reached) -> float:
    """Send SIGKILL to a worker's process. Docker starts it again."""
    return await _kill(await busy_worker(project))


async def container_killed(project: Reached) -> float:
    """The container of a worker is killed, and stays dead, as a pod does that is deleted by force."""
    container = await busy_worker(project)
    await _docker("kill", container)
    return await _ended_at(container)


async def ingest_killed(project: Reached) -> float:
    """Send SIGKILL to ingest's process. Docker starts it again."""
    (container,) = await _containers(project, "ingest")
    return await _kill(container)


async def database_crashed(project: Reached) -> float:
    """Send SIGKILL to PostgreSQL's first process. Docker starts it again, and it recovers from its log."""
    (container,) = await _containers(project, "db")
    await _kill(container)
    return await _answering(project)


async def database_stopped(project: Reached) -> float:
    """Stop the database in an orderly way, and start it after a while."""
    await _compose(project, "stop", "db")
    await asyncio.sleep(DOWN)  # how long the fault lasts; so below
    await _compose(project, "start", "db")
    return await _answering(project)


async def database_frozen(project: Reached) -> float:
    """Freeze every process of the database: connections stay open, and nothing answers."""
    (container,) = await _containers(project, "db")
    await pause(container)
    await asyncio.sleep(FROZEN)
    await _compose(project, "unpause", "db")
    return time.time()


async def _cut_off(project: Reached, seconds: float) -> float:
    """Drop a worker's packets to the database. It can still reach Slack."""
    container, network = await busy_worker(project), f"{project.name}_database"
    template = f'{{{{(index .NetworkSettings.Networks "{network}").IPAddress}}}}'
    address = (await _docker("inspect", "--format", template, container)).strip()
    await _docker("network", "disconnect", network, container)
    await asyncio.sleep(seconds)
    await _docker("network", "connect", "--ip", address, network, container)
    return time.time()


async def _freeze(project: Reached, seconds: float) -> float:
    """Freeze a worker's process, as a machine without memory does."""
    container = await busy_worker(project)
    await pause(container)
    await asyncio.sleep(seconds)
    await _docker("unpause", container)
    return time.time()


worker_cut_off = partial(_cut_off, seconds=AWAY)
worker_cut_off_briefly = partial(_cut_off, seconds=SHORTLY)
worker_frozen = partial(_freeze, seconds=AWAY)
worker_frozen_for_long = partial(_freeze, seconds=LONG)


async def connections_taken(project: Reached) -> float:
    """Take every connection of the database, and cut the services' connections."""
    program = (Path(__file__).parent / "fill.py").read_text()
    dsn = "postgresql://postgres:demo@db/surelane"
    on_network = ("run", "--rm", f"--network={project.name}_database", "--entrypoint=python", HELPER)
    held = await _docker(*on_network, "-c", program, str(FULL), dsn)
    assert int(held) >= 90, f"only {held} connections could be had"
    return time.time()


async def events_locked(project: Reached) -> float:
    """Lock the waiting events in an operator's transaction that stays open for a while."""
    async with asyncio.timeout(60):
        while (await asyncio.to_thread(project.query, LOCK_WAITING)).startswith("0"):
            pass
    return time.time()


async def _answering(project: Reached) -> float:
    """Wait until the database answers. How long that takes is a matter of the machine."""
    async with asyncio.timeout(120):
        while True:
            with suppress(AssertionError):  # it still starts
                await asyncio.to_thread(project.locate)
                await asyncio.to_thread(project.query, "select 1")
                return time.time()
            await asyncio.sleep(0.1)


async def _kill(container: str) -> float:
    """Kill a process as a crash does, and wait until Docker starts it again. `docker kill` would prevent that."""
    killed = await _pid(container)
    kill = f"import os; os.kill({killed}, 9)"
    alone = ("--pid=host", "--network=none", "--user=0", "--entrypoint=python")
    await _docker("run", "--rm", *alone, HELPER, "-c", kill)
    async with asyncio.timeout(60):
        while await _pid(container) in (killed, "0"):  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.1)
    return await _ended_at(container)


async def _ended_at(container: str) -> float:
    """When the container's process last ended."""
    ended = (await _docker("inspect", "--format={{.State.FinishedAt}}", container)).strip()
    return datetime.fromisoformat(ended).timestamp()


async def _pid(container: str) -> str:
    return (await _docker("inspect", "--format={{.State.Pid}}", container)).strip()


async def pause(container: str) -> None:
    """Freeze a container's processes. The engine may need a second try on a machine with much else to do."""
    async with asyncio.timeout(60):
        while (await asyncio.to_thread(run, "docker", "pause", container, check=False)).returncode != 0:  # noqa: ASYNC110
            await asyncio.sleep(0.5)


async def busy_worker(project: Reached) -> str:
    """Wait until a worker is halfway through a slow event, and return its container."""
    async with asyncio.timeout(60):
        while not (host := await asyncio.to_thread(project.query, BUSY)):  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.1)
    return next(name for name in await _containers(project, "worker") if name.startswith(host))


async def _containers(project: Reached, service: str) -> list[str]:
    return (await _compose(project, "ps", "--quiet", service)).split()


async def _compose(project: Reached, *arguments: str) -> str:
    return await asyncio.to_thread(project.compose, *arguments)


async def _docker(*arguments: str) -> str:
    return (await asyncio.to_thread(run, "docker", *arguments, within=120)).stdout
