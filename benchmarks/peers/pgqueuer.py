# mypy: disable-error-code="import-not-found, unused-ignore"
"""PgQueuer: how it is installed, filled and run.

Its documentation recommends, for throughput, asyncpg, larger batches and its autovacuum settings; its own benchmark
runs several queue managers, each with its own connection, on uvloop. All of that here, in its durable mode.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer.core.qm import QueueManager
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

from benchmarks import tally
from benchmarks.fill import PAYLOAD_BYTES

BATCH = 200
MANAGERS = 2
SETTINGS = f"batch_size={BATCH}, {MANAGERS} queue managers, each on an asyncpg connection, uvloop, durable, `autovac`"
SPAN = """
    select extract(epoch from max(created) filter (where status = 'successful')
        - min(created) filter (where status = 'picked'))::float8
    , count(*) filter (where status = 'successful') from pgqueuer_log
"""
ENTRYPOINT = "bench"
CHUNK = 10_000


async def install(uri: str) -> None:
    """Creates its schema."""
    async with _queries(uri) as queries:
        await queries.install()
        await queries.optimize_autovacuum()


async def fill(uri: str, count: int) -> None:
    """Enqueues ``count`` jobs."""
    payload = b"x" * PAYLOAD_BYTES
    async with _queries(uri) as queries:
        for _ in range(0, count, CHUNK):
            size = min(CHUNK, count)
            await queries.enqueue([ENTRYPOINT] * size, [payload] * size, [0] * size)


@asynccontextmanager
async def inserting(uri: str) -> AsyncIterator[Callable[[int], Awaitable[object]]]:
    """Enqueues numbered jobs one at a time."""
    async with _queries(uri) as queries:
        yield lambda number: queries.enqueue(ENTRYPOINT, str(number).encode())


@asynccontextmanager
async def _queries(uri: str) -> AsyncIterator[Queries]:
    connection = await asyncpg.connect(uri)
    try:
        yield Queries(AsyncpgDriver(connection))
    finally:
        await connection.close()


async def _run(mode: QueueExecutionMode, uri: str) -> None:
    count = tally.Tally()

    async def handle(job: Job) -> None:
        if len(job.payload or b"") == PAYLOAD_BYTES:
            count.add()
        else:
            tally.started(int(job.payload or b"0"))

    managers = []
    for _ in range(MANAGERS if mode is QueueExecutionMode.drain else 1):
        manager = QueueManager(Queries(AsyncpgDriver(await asyncpg.connect(uri))))
        manager.entrypoint(ENTRYPOINT)(handle)
        managers.append(manager)
    _end_on_sigterm(managers)
    runs = (
        manager.run(batch_size=BATCH, mode=mode, dequeue_timeout=timedelta(seconds=5)) for manager in managers
    )
    await asyncio.gather(*runs)


def _end_on_sigterm(managers: Sequence[QueueManager]) -> None:
    def end() -> None:
        for manager in managers:
            manager.shutdown.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)


if __name__ == "__main__":
    modes = {"drain": QueueExecutionMode.drain, "listen": QueueExecutionMode.continuous}
    uvloop.run(_run(modes[sys.argv[1]], sys.argv[2]))
