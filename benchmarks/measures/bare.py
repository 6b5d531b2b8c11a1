"""Measure what the worker service adds to its SQL, in rate and in CPU."""

from functools import partial

from benchmarks import consumer, figures, ours
from benchmarks.bench import Bench
from benchmarks.fill import fill
from benchmarks.ours import CONCURRENCY, Drain, drain
from benchmarks.programs import bare_driver
from benchmarks.result import Bars, Result, Verdict

WORKER, BARE = "surelane worker", "its SQL driven bare"
CPU_LIMIT = 25e-6
"""CPU seconds of the worker per event."""


async def measure(bench: Bench) -> Result:
    """Drain the same queue by the worker and by bare SQL, in turn."""
    count = bench.size(100_000, 20_000)
    starts = {
        BARE: lambda database: consumer.running(
            BARE, "benchmarks.programs.bare_driver", database.worker, ends=True
        ),
        WORKER: lambda database: consumer.worker(database.worker),
    }
    rounds: dict[str, list[Drain]] = {name: [] for name in starts}
    for _ in range(bench.rounds):
        for name, start in starts.items():
            rounds[name].append(await drain(bench, count, partial(fill, count=count), start))
            bench.say(f"{name}: {figures.rate(rounds[name][-1].rate)} events/s")
    return _result(count, rounds)


def _result(count: int, rounds: dict[str, list[Drain]]) -> Result:
    rates = ours.rates(rounds)
    cpu = {name: figures.median([each.cpu for each in drains]) for name, drains in rounds.items()}
    share = rates[WORKER] / rates[BARE]
    return Result(
        title="The worker against its SQL",
        how=f"""
            {count:,} events are claimed and completed in batches of {bare_driver.BATCH} over
            {bare_driver.CONNECTIONS} connections. One queue is drained by the worker service
            (SURELANE_CONCURRENCY={CONCURRENCY}, a handler that does nothing). The other is drained
            by a process that only calls agent.claim_events and agent.complete_events. The figures
            are medians of {len(rounds[BARE])} rounds, in turn. Python and PostgreSQL share the
            cores. CPU is the process's own time, user and system.
        """,
        table=ours.table("process", rounds),
        verdicts=[
            Verdict(
                "the worker reaches half the rate of its SQL driven bare",
                f"{figures.ratio(share)}",
                share >= 0.5,
            ),
            Verdict(
                "the worker takes at most 25 µs of CPU per event",
                figures.microseconds(cpu[WORKER]),
                cpu[WORKER] <= CPU_LIMIT,
            ),
        ],
        plots=[Bars("The worker against its SQL", "events/s", rates)],
    )
