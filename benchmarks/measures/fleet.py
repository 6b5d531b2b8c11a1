"""Measure what an event costs the database, by the number of idle workers."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from benchmarks import consumer, figures, load
from benchmarks.bench import Bench, Database
from benchmarks.consumer import Consumer
from benchmarks.meter import usage
from benchmarks.result import Lines, Result, Table, Verdict
from benchmarks.server import connected
from surelane.calls import Connection
from surelane_worker.claiming.position import PATIENCE

FLEETS = (1, 5, 20, 50)
QUICK_FLEETS = (1, 3)
RATES = (1, 5, 100)
"""Events a second."""
SETTLING = 15.0
"""Seconds until every worker has its position and has warmed its connections."""
WARMING, WARMING_RATE = PATIENCE + 50, 50
"""Events, and how many a second, after which the workers in reserve listen no longer."""
STATISTICS = 15.0
"""Seconds in which servers report the transactions of the warming."""
STARTED_WITHIN = 300.0
MOST_TIMES_ONE = 1.5
P50_LIMIT, P99_LIMIT = 0.003, 0.015


@dataclass(frozen=True)
class Trickle:
    """Events at a rate: transactions an event, and seconds from commit to handler."""

    commits: float
    delays: Sequence[float]


@dataclass(frozen=True)
class Fleet:
    """A number of workers: transactions a second while idle, and what events cost at each rate."""

    idle: float
    trickles: dict[int, Trickle]


async def measure(bench: Bench) -> Result:
    """Give fleets of different sizes the same events."""
    seconds = bench.size(30, 4)
    fleets = {}
    for count in QUICK_FLEETS if bench.quick else FLEETS:
        fleets[count] = await _fleet(bench, count, seconds)
        costs = ", ".join(f"{each.commits:.2f} at {rate}/s" for rate, each in fleets[count].trickles.items())
        bench.say(f"{count} workers: {costs}; idle {fleets[count].idle:.2f} transactions/s")
    return _result(fleets, seconds)


async def _fleet(bench: Bench, count: int, seconds: int) -> Fleet:
    loop = asyncio.get_running_loop()
    async with (
        bench.database() as database,
        connected(database.admin) as connection,
        AsyncExitStack() as stack,
    ):
        workers = await _start(stack, database, connection, count)
        await _trickle(workers, connection, WARMING_RATE, bench.size(WARMING, WARMING_RATE) // WARMING_RATE)
        await asyncio.sleep(STATISTICS)
        before, began = await usage(connection), loop.time()
        await asyncio.sleep(seconds)
        idle = await usage(connection) - before
        elapsed = loop.time() - began
        trickles = {rate: await _trickle(workers, connection, rate, seconds) for rate in RATES}
        return Fleet(idle.commits / elapsed, trickles)


async def _start(
    stack: AsyncExitStack, database: Database, connection: Connection, count: int
) -> list[Consumer]:
    workers = [await stack.enter_async_context(consumer.worker(database.worker)) for _ in range(count)]
    async with asyncio.timeout(STARTED_WITHIN):
        while await connection.fetchval("select count(*) from agent.worker") < count:  # noqa: ASYNC110 - no signal
            await asyncio.sleep(1)
    await asyncio.sleep(SETTLING)
    return workers


async def _trickle(workers: Sequence[Consumer], connection: Connection, rate: int, seconds: int) -> Trickle:
    """Insert events at about equal distances, one transaction each."""
    loop = asyncio.get_running_loop()
    before, committed = await usage(connection), {}
    began = loop.time()
    for nth in range(rate * seconds):
        await asyncio.sleep(began + (nth + random.random()) / rate - loop.time())
        number = rate * 1_000_000 + nth
        _, committed[number] = await load.insert_timed(connection, number)
    used = await usage(connection) - before
    delays = [await _started(workers, number) - at for number, at in committed.items()]
    return Trickle(used.commits / len(committed), delays)


async def _started(workers: Sequence[Consumer], number: int) -> float:
    """When the event's handler started, in whichever worker.

    Raises:
        TimeoutError: it did not.
    """
    async with asyncio.timeout(30):
        while not (found := [each.started[number] for each in workers if number in each.started]):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    return min(found)


def _result(fleets: dict[int, Fleet], seconds: int) -> Result:
    one, most = fleets[min(fleets)], max(fleets)
    timed = fleets.get(20, fleets[most])
    delays = timed.trickles[5].delays
    p50, p99 = figures.percentile(delays, 0.5), figures.percentile(delays, 0.99)
    times = {
        rate: fleets[most].trickles[rate].commits / trickle.commits for rate, trickle in one.trickles.items()
    }
    return Result(
        title="A fleet of idle workers",
        how=f"""
            Fleets of workers with default settings handle single events that come at three rates,
            {seconds} s each; the handlers do nothing. All workers and the sender share the machine.
            PostgreSQL counts the database's transactions: the insert, claims,
            settles, the processing of notifications, polls, announcements and all other duties. A
            fleet without events was counted for {seconds} s, too. At first workers in reserve listen
            until they have heard {PATIENCE:,} notifications, each a transaction: so many are sent
            before.
        """,
        table=_table(fleets),
        verdicts=[
            *(
                Verdict(
                    f"{most} workers, {rate} events/s: at most {MOST_TIMES_ONE} × one worker's transactions",  # noqa: RUF001
                    figures.ratio(value),
                    value <= MOST_TIMES_ONE,
                )
                for rate, value in times.items()
            ),
            Verdict(
                "20 workers, 5 events/s: commit → handler p50 at most 3 ms, p99 15 ms",
                f"{figures.milliseconds(p50)}, {figures.milliseconds(p99)}",
                p50 <= P50_LIMIT and p99 <= P99_LIMIT,
            ),
            Verdict(
                f"idle: {most} workers cause at most {most} × the transactions of one",  # noqa: RUF001
                f"{figures.ratio(fleets[most].idle / one.idle)} ×",  # noqa: RUF001
                fleets[most].idle <= most * one.idle,
            ),
        ],
        plots=[
            Lines(
                "Transactions an event, by the number of idle workers",
                "workers",
                "transactions",
                {
                    f"{rate} events/s": [
                        (float(count), fleet.trickles[rate].commits) for count, fleet in fleets.items()
                    ]
                    for rate in RATES
                },
            )
        ],
    )


def _table(fleets: dict[int, Fleet]) -> Table:
    columns = ("workers", "idle: transactions/s", *(f"an event at {rate}/s" for rate in RATES))
    latencies = ("commit → handler at 5/s: p50", "p99")
    rows = [
        (
            str(count),
            f"{fleet.idle:.2f}",
            *(f"{fleet.trickles[rate].commits:.2f}" for rate in RATES),
            *(
                figures.milliseconds(figures.percentile(fleet.trickles[5].delays, share))
                for share in (0.5, 0.99)
            ),
        )
        for count, fleet in fleets.items()
    ]
    return Table((*columns, *latencies), rows)
