# mypy: disable-error-code="import-not-found, unused-ignore"
"""Install, fill and run PgQueuer.

For throughput, its documentation recommends asyncpg, larger batches and its autovacuum settings. Its own benchmark
runs several queue managers on uvloop, each with its own connection. This module does all of that, in durable mode.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import asyncpg
import uvloop
from pgqueuer.core.qm import QueueManager
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

from benchmarks.fill import PAYLOAD_BYTES
from benchmarks.programs import tally

SETTINGS = "queue managers on an asyncpg connection each, uvloop, durable, `pgq autovac`"
TUNINGS = [
    {"batch_size": batch_size, "managers": managers} for batch_size in (200, 500) for managers in (1, 2, 5)
]
SPAN = """
    select extract(epoch from max(created) filter (where status = 'successful')
        - min(created) filter (where status = 'picked'))::float8
    , count(*) filter (where status = 'successful') from pgqueuer_log
"""
ENTRYPOINT = "bench"
CHUNK = 10_000


async def install(uri: str) -> None:
    """Create its schema."""
    async with _queries(uri) as queries:
        await queries.install()
        await queries.optimize_autovacuum()


async def fill(uri: str, count: int) -> None:
    """Enqueue ``count`` jobs."""
    payload = b"x" * PAYLOAD_BYTES
    async with _queries(uri) as queries:
        for _ in range(0, count, CHUNK):
            size = min(CHUNK, count)
            await queries.enqueue([ENTRYPOINT] * size, [payload] * size, [0] * size)


@asynccontextmanager
async def inserting(uri: str) -> AsyncIterator[Callable[[int], Awaitable[object]]]:
    """Enqueue numbered jobs one at a time."""
    async with _queries(uri) as queries:
        yield lambda number: queries.enqueue(ENTRYPOINT, str(number).encode())


@asynccontextmanager
async def enqueueing(uri: str) -> AsyncIterator[tuple[int, Callable[[int], Awaitable[object]]]]:
    """Enqueue jobs in batches; yields also the server's process for the connection."""
    payload = b"x" * PAYLOAD_BYTES
    connection = await asyncpg.connect(uri)
    queries = Queries(AsyncpgDriver(connection))
    try:
        yield (
            connection.get_server_pid(),
            lambda size: queries.enqueue([ENTRYPOINT] * size, [payload] * size, [0] * size),
        )
    finally:
        await connection.close()


@asynccontextmanager
async def _queries(uri: str) -> AsyncIterator[Queries]:
    connection = await asyncpg.connect(uri)
    try:
        yield Queries(AsyncpgDriver(connection))
    finally:
        await connection.close()


async def _run(mode: QueueExecutionMode, uri: str, batch_size: int = 10, managers: int = 1) -> None:
    count = tally.Tally()

    async def handle(job: Job) -> None:
        if len(job.payload or b"") == PAYLOAD_BYTES:
            count.add()
        else:
            tally.started(int(job.payload or b"0"))

    running = []
    for _ in range(managers):
        manager = QueueManager(Queries(AsyncpgDriver(await asyncpg.connect(uri))))
        manager.entrypoint(ENTRYPOINT)(handle)
        running.append(manager)
    _end_on_sigterm(running)
    await asyncio.gather(*(manager.run(batch_size=batch_size, mode=mode) for manager in running))


def _end_on_sigterm(managers: Sequence[QueueManager]) -> None:
    def end() -> None:
        for manager in managers:
            manager.shutdown.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)


if __name__ == "__main__":
    modes = {"drain": QueueExecutionMode.drain, "listen": QueueExecutionMode.continuous}
    uvloop.run(_run(modes[sys.argv[1]], sys.argv[2], *map(int, sys.argv[3:])))
