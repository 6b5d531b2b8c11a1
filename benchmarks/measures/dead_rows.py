"""Measure how many dead rows a steady load leaves, with and without the worker's own vacuum."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from benchmarks import consumer, figures, load
from benchmarks.bench import Bench
from benchmarks.meter import dead_rows
from benchmarks.result import Bars, Result, Table, Verdict
from benchmarks.server import connected

OURS, STOCK = "the worker vacuums, too", "autovacuum alone"
WORKERS, RATE = 2, 800
WARMING, SECONDS = 70, 130
"""Seconds before and of a measurement: autovacuum looks once a minute."""
MOST_DEAD, P50, P99 = 5000, 0.010, 0.022

_DELAYS = """
    select extract(epoch from finished_at - enqueued_at)::float8 from agent.event_hist
    where finished_at > clock_timestamp() - make_interval(secs => $1::int4)
"""


@dataclass
class Rows:
    """What was seen, once a second, and how long events took from the insert to their end."""

    dead: list[int] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    vacuums: int = 0


async def measure(bench: Bench) -> Result:
    """Run both in turn."""
    seen = {STOCK: Rows(), OURS: Rows()}
    for nth in range(bench.rounds):
        for name in (STOCK, OURS):
            rows = await _round(bench, may=name == OURS)
            seen[name].dead += rows.dead
            seen[name].delays += rows.delays
            seen[name].vacuums += rows.vacuums
            bench.say(
                f"round {nth + 1}, {name}: {figures.median(rows.dead):,.0f} dead rows, {rows.vacuums} vacuums"
            )
    return _result(seen, bench)


async def _round(bench: Bench, *, may: bool) -> Rows:
    rows, seconds = Rows(), bench.size(SECONDS, 4)
    async with (
        bench.database() as database,
        connected(database.admin) as connection,
        AsyncExitStack() as stack,
    ):
        if not may:
            await connection.execute("revoke maintain on agent.event from agent_worker")
        for _ in range(WORKERS):
            await stack.enter_async_context(consumer.worker(database.worker))
        await stack.enter_async_context(load.at_rate(database.admin, RATE))
        await asyncio.sleep(bench.size(WARMING, 2))
        for _ in range(seconds):
            await asyncio.sleep(1)
            rows.dead.append(await dead_rows(connection, "agent.event"))
        rows.delays = [row[0] for row in await connection.fetch(_DELAYS, seconds)]
        rows.vacuums = await connection.fetchval(
            "select vacuum_count + autovacuum_count from pg_stat_user_tables where relid = 'agent.event'::regclass"
        )
    return rows


def _result(seen: dict[str, Rows], bench: Bench) -> Result:
    p50, p99 = (figures.percentile(seen[OURS].delays, share) for share in (0.5, 0.99))
    dead = figures.median(seen[OURS].dead)
    return Result(
        title="Dead rows under a steady load",
        how=f"""
            {RATE} events/s for {bench.size(SECONDS, 4)} s, after {bench.size(WARMING, 2)} s of the
            same, for {WORKERS} workers with default settings; the handlers do nothing. PostgreSQL has
            its stock settings of autovacuum. The dead rows of `agent.event` are read once a second,
            {bench.rounds} rounds of each in turn. Where autovacuum is alone, the workers' role has no
            right to vacuum. A delay is from the insert to the end, by the database's clock.
        """,
        table=Table(
            ("", "dead rows: median", "most", "vacuums", "insert → end: p50", "p99"),
            [
                (
                    name,
                    f"{figures.median(rows.dead):,.0f}",
                    f"{max(rows.dead):,}",
                    str(rows.vacuums),
                    *(figures.milliseconds(figures.percentile(rows.delays, share)) for share in (0.5, 0.99)),
                )
                for name, rows in seen.items()
            ],
        ),
        verdicts=[
            Verdict(f"fewer than {MOST_DEAD:,} dead rows in the median", f"{dead:,.0f}", dead < MOST_DEAD),
            Verdict(
                "insert → end p50 at most 10 ms, p99 22 ms",
                f"{figures.milliseconds(p50)}, {figures.milliseconds(p99)}",
                p50 <= P50 and p99 <= P99,
            ),
        ],
        plots=[
            Bars(
                f"Dead rows at {RATE} events/s, median",
                "rows",
                {name: figures.median(rows.dead) for name, rows in seen.items()},
            )
        ],
    )
