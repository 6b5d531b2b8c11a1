"""Put a sustained load on a worker, and time the start of numbered events."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from benchmarks.consumer import Consumer
from benchmarks.fill import KIND, PAYLOAD_BYTES
from benchmarks.programs.handlers import TIMED
from benchmarks.server import connected
from surelane.calls import Connection

BATCH = 100
STEP = 0.02
"""Seconds between two inserts at a rate."""
AHEAD = 2000
"""The number of unhandled events above which the producer waits."""

_INSERT = """
    insert into agent.event (event_ts, event, kind, head, lane)
    select clock_timestamp(), jsonb_build_object('text', repeat('x', $2)), $3, true, agent.lane_in(0, null)
    from generate_series(1, $1)
"""


async def supply(connection: Connection, handled: Callable[[], int], seconds: float) -> int:
    """Insert batches for ``seconds``, a bounded number of events ahead of the worker. Return the number of events."""
    inserted, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        if inserted - handled() < AHEAD:
            await connection.execute(_INSERT, BATCH, PAYLOAD_BYTES - 12, KIND)
            inserted += BATCH
        else:
            await asyncio.sleep(0.001)
    return inserted


@asynccontextmanager
async def at_rate(uri: str, rate: int) -> AsyncIterator[None]:
    """Enqueue so many events per second for the length of the block, over a connection of its own."""

    async def supply() -> None:
        async with connected(uri) as connection:
            began, sent = time.monotonic(), 0
            while True:
                due = int((time.monotonic() - began) * rate) - sent
                await connection.execute(
                    "select agent.enqueue($1) from generate_series(1, $2::int4)", KIND, due
                )
                sent += due
                await asyncio.sleep(STEP)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(supply())
        try:
            yield
        finally:
            task.cancel()


async def insert_timed(
    connection: Connection, number: int, *, workspace: str = "", priority: int = 1
) -> tuple[float, float]:
    """Enqueue a numbered event as an application does. Return the times of sending and of learning of the commit."""
    sent = time.monotonic()
    await connection.execute(
        "select agent.enqueue($1, jsonb_build_object('team_id', $2::text), _item_key => $3, _priority => $4)",
        KIND,
        workspace,
        f"{TIMED}{number}",
        priority,
    )
    return sent, time.monotonic()


async def until_started(consumer: Consumer, number: int, within: float = 10) -> float:
    """Wait until a numbered event's handler starts; return the time.

    Raises:
        RuntimeError: it did not start in time.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(within):
            while number not in consumer.started:
                await consumer.news()
            return consumer.started[number]
    raise RuntimeError(
        f"{consumer.name}: event {number} was not handled within {within:g} s:\n{consumer.tail}"
    )
