"""Measure whether a worker's memory depends on the backlog."""

import asyncio

from benchmarks import consumer, figures
from benchmarks.bench import Bench, at_rest
from benchmarks.fill import fill
from benchmarks.ours import CONCURRENCY
from benchmarks.programs.handlers import NAP
from benchmarks.result import Bars, Result, Table, Verdict

IDLE_LIMIT = 80 * 2**20
TOLERANCE = 0.05
"""The most by which two runs of the same worker differ."""


async def measure(bench: Bench) -> Result:
    """Run a worker beside an empty, a short and a long queue, each fresh."""
    sizes = (0, 1_000, bench.size(1_000_000, 50_000))
    peaks = {size: await _peak(bench, size) for size in sizes}
    _, small, large = sizes
    growth = peaks[large] / peaks[small] - 1
    return Result(
        title="Memory of a worker",
        how=f"""
            The largest resident memory of a worker process (SURELANE_CONCURRENCY={CONCURRENCY}, a
            handler that takes {NAP * 1000:g} ms) within {bench.size(8, 4)} seconds. The queue holds
            the given number of waiting events.
        """,
        table=Table(
            ("waiting events", "resident memory"),
            [(f"{size:,}", figures.mebibytes(peak)) for size, peak in peaks.items()],
        ),
        verdicts=[
            Verdict(
                f"the same with {large:,} waiting as with {small:,} (within {TOLERANCE:.0%})",
                f"{growth:+.1%}",
                growth <= TOLERANCE,
            ),
            Verdict(
                "an idle worker takes at most 80 MiB", figures.mebibytes(peaks[0]), peaks[0] <= IDLE_LIMIT
            ),
        ],
        plots=[
            Bars(
                "Memory of a worker",
                "MiB",
                {f"{size:,} waiting": peak / 2**20 for size, peak in peaks.items()},
            )
        ],
    )


async def _peak(bench: Bench, size: int) -> int:
    async with bench.database() as database:
        async with at_rest(database) as connection:
            await fill(connection, size)
        async with consumer.worker(database.worker, "waiting") as worker:
            peak, loop = 0, asyncio.get_running_loop()
            until = loop.time() + bench.size(8, 4)
            while loop.time() < until:
                await asyncio.sleep(0.1)
                peak = max(peak, worker.rss())
            bench.say(f"{size:,} waiting: {figures.mebibytes(peak)}")
            return peak
