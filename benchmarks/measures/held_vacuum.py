"""Measure the effect of a long-running transaction elsewhere on the queue.

Vacuum then removes no dead rows, so they collect at the head of the queue. Without cursors, claims would walk over
them.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from benchmarks import consumer, figures
from benchmarks.bench import Bench, Database, at_rest
from benchmarks.consumer import Consumer, Moment
from benchmarks.load import insert_timed, supply, until_started
from benchmarks.meter import dead_rows
from benchmarks.result import Lines, Result, Table, Verdict
from benchmarks.server import connected
from surelane.calls import Connection

FREE, HELD = "vacuum runs", "vacuum held back"
A_SECOND = 10
VACUUM_EVERY = 5.0
P99_LIMIT = 0.020


@dataclass(frozen=True)
class Load:
    """The figures of a sustained load, and of the trickle after it."""

    rates: Sequence[tuple[float, float]]
    """Events/s over time."""

    late: float
    """Events/s in the last third, when there are most dead rows."""

    dead: int
    latencies: Sequence[float]


async def measure(bench: Bench) -> Result:
    """Load the queue without and with a transaction that holds back vacuum."""
    seconds = bench.size(60, 6)
    loads = {}
    for name in (FREE, HELD):
        async with bench.database() as database:
            loads[name] = await _load(bench, database, seconds, hold=name is HELD)
        bench.say(
            f"{name}: {figures.rate(loads[name].late)} events/s at the end, {loads[name].dead:,} dead rows"
        )
    return _result(seconds, loads)


async def _load(bench: Bench, database: Database, seconds: float, *, hold: bool) -> Load:
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(at_rest(database))
        if hold:
            await _hold(await stack.enter_async_context(connected(database.admin)))
        await stack.enter_async_context(_vacuuming(database))
        worker = await stack.enter_async_context(consumer.worker(database.worker))
        inserted = await supply(connection, lambda: worker.count, seconds)
        await worker.handled(inserted - inserted % 1000, 60)
        moments = list(worker.moments)
        dead = await dead_rows(connection, "agent.event")
        latencies = await _trickle(connection, worker, bench.size(200, 30))
    return Load(_rates(moments), _late(moments), dead, latencies)


@asynccontextmanager
async def _vacuuming(database: Database) -> AsyncIterator[None]:
    """Vacuum the queue regularly, like autovacuum, but at the same times in every run."""

    async def vacuum() -> None:
        async with connected(database.admin) as connection:
            while True:
                await asyncio.sleep(VACUUM_EVERY)
                await connection.execute("vacuum agent.event")

    task = asyncio.create_task(vacuum())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _hold(connection: Connection) -> None:
    """Take a snapshot and keep it, as a forgotten session or a long report does."""
    await connection.execute("begin isolation level repeatable read")
    await connection.execute("select count(*) from agent.kind")


async def _trickle(connection: Connection, worker: Consumer, count: int) -> list[float]:
    latencies = []
    for number in range(count):
        _, committed = await insert_timed(connection, number)
        latencies.append(await until_started(worker, number) - committed)
        await asyncio.sleep(random.uniform(0.5, 1.5) / A_SECOND)
    return latencies


def _rates(moments: Sequence[Moment]) -> list[tuple[float, float]]:
    begin, points, last = moments[0].at, [], moments[0]
    for moment in moments:
        if moment.at - last.at >= 1:
            points.append((moment.at - begin, (moment.count - last.count) / (moment.at - last.at)))
            last = moment
    return points


def _late(moments: Sequence[Moment]) -> float:
    begin, end = moments[0], moments[-1]
    since = next(moment for moment in moments if moment.at >= end.at - (end.at - begin.at) / 3)
    return (end.count - since.count) / (end.at - since.at)


def _result(seconds: float, loads: dict[str, Load]) -> Result:
    share = loads[HELD].late / loads[FREE].late
    p99 = figures.percentile(loads[HELD].latencies, 0.99)
    rows = [
        (
            name,
            figures.rate(load.late),
            f"{load.dead:,}",
            figures.milliseconds(figures.percentile(load.latencies, 0.5)),
            figures.milliseconds(figures.percentile(load.latencies, 0.99)),
        )
        for name, load in loads.items()
    ]
    return Result(
        title="Vacuum held back",
        how=f"""
            For {seconds:g} seconds one producer inserts batches of 100 events and one worker
            handles them. The first run is normal. In the second run another session keeps a
            snapshot open, so that vacuum can remove no dead row. Vacuum runs every {VACUUM_EVERY:g}
            s. The rate is that of the last third. After that, {A_SECOND} single events per second
            are enqueued, {len(loads[FREE].latencies)} in all. Their latency is the time from the
            insert's commit to the handler's start.
        """,
        table=Table(
            ("", "events/s, insert to history", "dead rows in the queue", "trickle p50", "trickle p99"), rows
        ),
        verdicts=[
            Verdict(
                f"vacuum held back for {seconds:g} s: at least 0.7 of the rate",
                f"{figures.ratio(share)}",
                share >= 0.7,
            ),
            Verdict(
                "a trickle in that state: p99 at most 20 ms", figures.milliseconds(p99), p99 <= P99_LIMIT
            ),
        ],
        plots=[
            Lines(
                "Insert to history while vacuum is held back",
                "seconds",
                "events/s",
                {n: load.rates for n, load in loads.items()},
            )
        ],
    )
