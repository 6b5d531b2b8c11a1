"""Fairness: how soon other workspaces' events, and events of the first priority, start beside a large backlog."""

import asyncio
import random
from bisect import bisect_left
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from benchmarks import consumer, figures, load
from benchmarks.bench import Bench, Database, at_rest
from benchmarks.consumer import Consumer
from benchmarks.fill import KIND, fill
from benchmarks.result import Bars, Result, Table, Verdict
from benchmarks.server import connected
from surelane.calls import Connection

BACKLOG = 1_000_000
CROWD = "T-crowd"
WORKSPACES = 50
SLOTS = 10
PAUSE = 0.05
"""Seconds between timed events, on average."""
WARM_UP = 10
ALONE, BESIDE, FIRST = "no backlog", "beside the backlog", "beside the backlog, priority 0"
FREED = "the same, since a slot was free"
LIMIT, FIRST_LIMIT = 2.0, 0.05

_FILLER = "select agent.enqueue($1) from generate_series(1, $2 - (select count(*) from agent.event))"
_MOVED = (
    "select exists (select from agent.band"
    " where workspace = $1 and moved_to > agent.clock() - interval '10 seconds')"
)


@dataclass
class Queue:
    """A queue whose slots are busy, and how long timed events waited there."""

    connection: Connection
    worker: Consumer
    database: Database
    number: int = 0
    times: dict[str, list[float]] = field(default_factory=dict)

    async def time(self, what: str, priority: int) -> None:
        """Enqueue one event of a small workspace and note how long after its commit its handler started."""
        self.number += 1
        _, committed = await load.insert_timed(
            self.connection, self.number, workspace=f"T{self.number % WORKSPACES}", priority=priority
        )
        started = await load.until_started(self.worker, self.number, within=120)
        self.times.setdefault(what, []).append(started - committed)
        if what == FIRST:
            ends = self.worker.ended
            after = bisect_left(ends, committed)
            freed = ends[after] if after < len(ends) else started
            self.times.setdefault(FREED, []).append(started - (freed if freed < started else committed))
        await asyncio.sleep(PAUSE * random.uniform(0.5, 1.5))


async def measure(bench: Bench) -> Result:
    """Time events in a queue with busy slots and no backlog, and in one with a backlog, in turn."""
    backlog = bench.size(BACKLOG, 100_000)
    async with AsyncExitStack() as stack:
        alone = await stack.enter_async_context(_queue(bench, 0))
        beside = await stack.enter_async_context(_queue(bench, backlog))
        supplier = await stack.enter_async_context(connected(alone.database.admin))
        await stack.enter_async_context(_kept_busy(supplier))
        await _seen_to(beside.connection)
        for _ in range(WARM_UP + bench.size(500, 100)):
            await alone.time(ALONE, 1)
            await beside.time(BESIDE, 1)
            await beside.time(FIRST, 0)
        return _result(
            backlog, {name: times[WARM_UP:] for name, times in (alone.times | beside.times).items()}
        )


@asynccontextmanager
async def _queue(bench: Bench, backlog: int) -> AsyncIterator[Queue]:
    async with bench.database() as database:
        async with at_rest(database) as connection:
            await fill(connection, backlog, workspace=CROWD)
        bench.say(f"filled with {backlog:,}")
        async with (
            at_rest(database) as connection,
            consumer.worker(database.worker, "busy", concurrency=SLOTS) as worker,
        ):
            yield Queue(connection, worker, database)


@asynccontextmanager
async def _kept_busy(connection: Connection) -> AsyncIterator[None]:
    """Keep one event waiting, so that all slots are busy, for the length of the block."""

    async def supply() -> None:
        while True:
            await connection.execute(_FILLER, KIND, SLOTS + 1)
            await asyncio.sleep(0.002)

    task = asyncio.create_task(supply())
    try:
        yield
    finally:
        task.cancel()


async def _seen_to(connection: Connection, within: float = 300) -> None:
    """Wait until the crowd has lanes of its own, and others' events that waited behind it were moved."""
    async with asyncio.timeout(within):
        moved = False
        while not moved:
            await asyncio.sleep(0.1)
            moved = await connection.fetchval(_MOVED, CROWD)


def _result(backlog: int, times: dict[str, list[float]]) -> Result:
    p50 = {name: figures.percentile(each, 0.5) for name, each in times.items()}
    p99 = {name: figures.percentile(each, 0.99) for name, each in times.items()}
    ratio = p99[BESIDE] / p99[ALONE]
    return Result(
        title="Fairness beside a backlog",
        how=f"""
            One workspace has {backlog:,} events waiting. {WORKSPACES} others enqueue single events
            of the same kind, about {PAUSE * 1000:g} ms apart, {len(times[BESIDE])} in all, at
            priority 1 and at priority 0. Handlers take 50 to 150 ms, and all {SLOTS} slots of the
            worker are busy. So they are in the queue without a backlog, which holds one event more
            than there are slots. The latency begins when the sender knows of the commit, and ends
            at the handler's start.
        """,
        table=Table(
            ("event", "p50", "p99"),
            [(name, figures.milliseconds(p50[name]), figures.milliseconds(p99[name])) for name in times],
        ),
        verdicts=[
            Verdict(
                "other workspaces' p99 at most twice that without the backlog",
                figures.ratio(ratio),
                ratio <= LIMIT,
            ),
            Verdict(
                "priority 0 overtakes the backlog: p99 at most 50 ms after a slot is free",
                figures.milliseconds(p99[FREED]),
                p99[FREED] <= FIRST_LIMIT,
            ),
        ],
        plots=[
            Bars(
                "Commit → handler started, slots busy, p99",
                "ms",
                {name: seconds * 1000 for name, seconds in p99.items()},
            )
        ],
    )
