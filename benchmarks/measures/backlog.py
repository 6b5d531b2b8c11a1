"""Measure whether a claim costs the same behind a short and a long backlog."""

import asyncio
import time
from contextlib import AsyncExitStack

import asyncpg

from benchmarks import figures
from benchmarks.bench import Bench, at_rest
from benchmarks.fill import fill
from benchmarks.result import Bars, Result, Table, Verdict
from surelane.calls import Connection

SMALL, LARGE = 1_000, 1_000_000
CLIENTS = 4
SLICE = 200
"""Claims from one queue in its turn. Afterwards the claimed events are replaced."""


class Queue:
    """A queue with a backlog, and clients that claim from it."""

    def __init__(self, admin: Connection, clients: list[Connection]) -> None:
        self._admin = admin
        self._clients = clients

    async def slice(self) -> list[float]:
        """Claim single events with every client; return the seconds of each claim."""
        times = await asyncio.gather(*(self._claim(client) for client in self._clients))
        return [seconds for client in times for seconds in client]

    async def _claim(self, client: Connection) -> list[float]:
        times = []
        for _ in range(SLICE // CLIENTS):
            began = time.perf_counter()
            claimed = await client.fetchval("select id from agent.claim_event()")
            times.append(time.perf_counter() - began)
            assert claimed is not None, "the queue ran empty"
        return times

    async def replace(self) -> None:
        """Restore the backlog."""
        await self._admin.execute(
            "select agent.complete_events(array_agg(id), array_agg(cardinality(claimed))) "
            "from agent.event where claimed_by is not null"
        )
        await fill(self._admin, SLICE)


async def measure(bench: Bench) -> Result:
    """Claim from a short and from a long queue, a slice of each in turn."""
    sizes = (SMALL, bench.size(LARGE, 50_000))
    times: dict[int, list[float]] = {size: [] for size in sizes}
    rates: dict[int, list[float]] = {size: [] for size in sizes}
    async with AsyncExitStack() as stack:
        queues = {size: await _queue(bench, stack, size) for size in sizes}
        for _ in range(bench.size(60, 5)):
            for size, queue in queues.items():
                began = time.perf_counter()
                times[size] += await queue.slice()
                rates[size].append(SLICE / (time.perf_counter() - began))
                await queue.replace()
    return _result(sizes, rates, times)


async def _queue(bench: Bench, stack: AsyncExitStack, size: int) -> Queue:
    database = await stack.enter_async_context(bench.database())
    async with at_rest(database) as connection:
        await fill(connection, size)
    bench.say(f"filled with {size:,}")
    admin = await stack.enter_async_context(at_rest(database))
    clients = []
    for _ in range(CLIENTS):
        clients.append(await asyncpg.connect(database.worker))
        stack.push_async_callback(clients[-1].close)
    return Queue(admin, clients)


def _result(sizes: tuple[int, int], rates: dict[int, list[float]], times: dict[int, list[float]]) -> Result:
    small, large = sizes
    share = figures.median(rates[large]) / figures.median(rates[small])
    rows = [
        (
            f"{size:,}",
            figures.rate(figures.median(rates[size])),
            figures.milliseconds(figures.percentile(times[size], 0.5)),
            figures.milliseconds(figures.percentile(times[size], 0.99)),
        )
        for size in sizes
    ]
    return Result(
        title="Single claims by backlog",
        how=f"""
            {CLIENTS} connections call agent.claim_event() for one event at a time. One queue holds
            {small:,} waiting events, the other {large:,}. Each queue gets {len(rates[small])}
            slices of {SLICE} claims, in turn, and the figures are medians of the slices. Between
            slices the claimed events are completed and replaced.
        """,
        table=Table(("waiting events", "claims/s", "p50", "p99"), rows),
        verdicts=[
            Verdict(
                f"at {large:,} waiting, at least 0.9 of the rate at {small:,}",
                f"{figures.ratio(share)}",
                share >= 0.9,
            )
        ],
        plots=[
            Bars(
                "Single claims by backlog",
                "claims/s",
                {f"{size:,} waiting": figures.median(rates[size]) for size in sizes},
            )
        ],
    )
