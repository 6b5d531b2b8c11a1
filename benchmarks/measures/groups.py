"""Measure the cost of keeping the events of a group in order."""

from functools import partial

from benchmarks import consumer, figures, ours
from benchmarks.bench import Bench
from benchmarks.fill import fill
from benchmarks.ours import CONCURRENCY, Drain, drain
from benchmarks.result import Bars, Result, Verdict

UNGROUPED, MANY, BUSY = "no groups", "groups of 10", "one group"
BUSY_RATE = 10_000


async def measure(bench: Bench) -> Result:
    """Drain the same number of events without groups, in many groups and in one, in turn."""
    count = bench.size(100_000, 10_000)
    sizes = {UNGROUPED: None, MANY: 10, BUSY: count}
    rounds: dict[str, list[Drain]] = {name: [] for name in sizes}
    for _ in range(bench.rounds):
        for name, size in sizes.items():
            rounds[name].append(
                await drain(
                    bench,
                    count,
                    partial(fill, count=count, group_size=size),
                    lambda database: consumer.worker(database.worker),
                )
            )
            bench.say(f"{name}: {figures.rate(rounds[name][-1].rate)} events/s")
    return _result(count, rounds)


def _result(count: int, rounds: dict[str, list[Drain]]) -> Result:
    rates = ours.rates(rounds)
    share = rates[MANY] / rates[UNGROUPED]
    return Result(
        title="Groups",
        how=f"""
            One worker (SURELANE_CONCURRENCY={CONCURRENCY}) drains {count:,} events: without groups,
            in {count // 10:,} groups of 10, and in a single group. A claim takes a group's head and
            up to 100 members, and the next claim follows when these are settled. The figures are
            medians of {len(rounds[MANY])} rounds, in turn.
        """,
        table=ours.table("events", rounds),
        verdicts=[
            Verdict(
                f"{count // 10:,} groups of 10: at least 0.5 of the ungrouped rate",
                f"{figures.ratio(share)}",
                share >= 0.5,
            ),
            Verdict(
                f"one busy group of {count:,}: at least {BUSY_RATE:,} events/s",
                f"{figures.rate(rates[BUSY])}/s",
                rates[BUSY] >= BUSY_RATE,
            ),
        ],
        plots=[Bars("Drain by groups, one worker process", "events/s", rates)],
    )
