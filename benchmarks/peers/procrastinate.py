# mypy: disable-error-code="import-not-found, unused-ignore"
"""Install, fill and run procrastinate.

For throughput, its documentation recommends asynchronous tasks with a higher concurrency in one worker, and a pool of
as many connections. psycopg is the compiled build, and the event loop is uvloop. Finished jobs are kept, as by default.
"""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvloop
from procrastinate import App, PsycopgConnector

from benchmarks.fill import PAYLOAD_BYTES
from benchmarks.programs import tally

SETTINGS = "a pool of psycopg (binary) connections, uvloop, finished jobs kept"
TUNINGS = [
    {"concurrency": concurrency, "connections": connections}
    for concurrency, connections in ((10, 10), (20, 10), (20, 20), (50, 20))
]
SPAN = """
    select extract(epoch from max(at) filter (where type = 'succeeded')
        - min(at) filter (where type = 'started'))::float8
    , count(*) filter (where type = 'succeeded') from procrastinate_events
"""
CHUNK = 1000

_tally = tally.Tally()


async def handle(number: int, text: str) -> None:
    """Do nothing but count the call."""
    if text:
        _tally.add()
    else:
        tally.started(number)


def _app(uri: str, connections: int = 10) -> tuple[App, Any]:
    app = App(connector=PsycopgConnector(conninfo=uri, min_size=1, max_size=connections))
    return app, app.task(name="bench")(handle)


async def install(uri: str) -> None:
    """Create its schema."""
    app, _ = _app(uri)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def fill(uri: str, count: int) -> None:
    """Enqueue ``count`` jobs."""
    text = "x" * (PAYLOAD_BYTES - 30)
    app, task = _app(uri)
    async with app.open_async():
        for start in range(0, count, CHUNK):
            numbers = range(start, min(start + CHUNK, count))
            await task.batch_defer_async(*({"number": number, "text": text} for number in numbers))


@asynccontextmanager
async def inserting(uri: str) -> AsyncIterator[Callable[[int], Awaitable[object]]]:
    """Enqueue numbered jobs one at a time."""
    app, task = _app(uri)
    async with app.open_async():
        yield lambda number: task.defer_async(number=number, text="")


async def _run(uri: str, concurrency: int = 1, connections: int = 10, *, wait: bool) -> None:
    app, _ = _app(uri, connections)
    async with app.open_async():
        await app.run_worker_async(concurrency=concurrency, wait=wait)


if __name__ == "__main__":
    uvloop.run(_run(sys.argv[2], *map(int, sys.argv[3:]), wait=sys.argv[1] == "listen"))
