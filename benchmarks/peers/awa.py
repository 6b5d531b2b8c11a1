# mypy: disable-error-code="import-not-found, unused-ignore"
"""Install, fill and run awa (awa-pg).

For throughput, its documentation recommends queue storage and one queue with many workers rather than many queues. It
recommends trying 2 and 4 claimers on a busy queue, and a pool of 20 connections plus 4 per queue. Finished jobs are
kept, as by default.
"""

import asyncio
import sys
from dataclasses import dataclass

import uvloop
from awa import AsyncClient

from benchmarks.fill import PAYLOAD_BYTES
from benchmarks.programs import tally

SETTINGS = "queue storage, one queue, a pool of 24 connections, uvloop, finished jobs kept"
TUNINGS = [
    {"max_workers": max_workers, "claimers": claimers}
    for max_workers, claimers in ((128, 1), (256, 1), (256, 2), (256, 4))
]
SPAN = """
    select extract(epoch from max(finalized_at) - min(attempted_at))::float8, count(*)
    from awa.terminal_jobs where state = 'completed'
"""
QUEUE, SCHEMA = "bench", "awa"
CONNECTIONS = 24
CHUNK = 10_000
END_WITHIN_MS = 30_000


@dataclass
class Bench:
    """A job's arguments. awa derives the job's kind from the class's name."""

    number: int
    text: str


async def install(uri: str) -> None:
    """Create its schema."""
    client = _client(uri)
    await client.migrate()
    await client.install_queue_storage(schema=SCHEMA)
    await client.close()


async def fill(uri: str, count: int) -> None:
    """Enqueue ``count`` jobs."""
    text = "x" * (PAYLOAD_BYTES - 30)
    client = _client(uri)
    for start in range(0, count, CHUNK):
        numbers = range(start, min(start + CHUNK, count))
        await client.enqueue_many_copy([Bench(number, text) for number in numbers], queue=QUEUE)
    await client.close()


def _client(uri: str) -> AsyncClient:
    # awa requires a host name even if the query names a Unix socket, which takes precedence.
    return AsyncClient(uri.replace("@/", "@localhost/"), max_connections=CONNECTIONS)


async def _drain(uri: str, max_workers: int, claimers: int) -> None:
    client = _client(uri)
    waiting = sum(queue.available for queue in await client.queue_stats())
    handled = tally.Tally()
    done = asyncio.Event()

    async def handle(_job: object) -> None:
        handled.add()
        if handled.count == waiting:
            done.set()

    client.task(Bench, queue=QUEUE)(handle)
    await client.start([{"name": QUEUE, "max_workers": max_workers, "claimers": claimers}])
    await done.wait()
    await client.shutdown(END_WITHIN_MS)
    await client.close()


if __name__ == "__main__":
    uvloop.run(_drain(sys.argv[2], *map(int, sys.argv[3:])))
