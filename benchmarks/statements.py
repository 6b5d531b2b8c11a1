"""Statements: how often an idle worker bothers the database."""

import asyncio
import re

from benchmarks import consumer, figures
from benchmarks.bench import Bench
from benchmarks.result import Result, Table, Verdict
from benchmarks.wiretap import tapped

SETTLING = 3.0
"""Seconds in which a worker looks at what it looks at once."""


async def measure(bench: Bench) -> Result:
    """Counts what an idle worker sends, function by function."""
    interval, intervals = bench.size(5, 1), bench.size(12, 8)
    async with (
        bench.database() as database,
        tapped(database.worker) as (uri, tap),
        consumer.worker(uri, SURELANE_POLL_INTERVAL=f"{interval}s"),
    ):
        await asyncio.sleep(SETTLING)
        tap.statements.clear()
        await asyncio.sleep(interval * intervals)
        counted = tap.statements.most_common()
    total = sum(count for _, count in counted)
    rows = [(_short(text), str(count), figures.ratio(count / intervals)) for text, count in counted]
    return Result(
        title="Statements of an idle worker",
        how=f"""
            What one worker without events sends in {intervals} poll intervals of {interval} s
            (jittered), after its first {SETTLING:g} s, counted on the wire. Its once-a-minute sweep is
            among it.
        """,
        table=Table(
            ("statement", "sent", "a poll interval"),
            [*rows, ("all", str(total), figures.ratio(total / intervals))],
        ),
        verdicts=[
            Verdict(
                "at most 1 a poll interval, and a sweep a minute",
                figures.ratio(total / intervals),
                _polls(counted) <= intervals * 1.1,
            )
        ],
    )


def _polls(counted: list[tuple[str, int]]) -> int:
    return sum(count for text, count in counted if "sweep" not in text)


def _short(text: str) -> str:
    function = re.search(r"agent\.\w+", text)
    return f"`{function.group() if function else text[:40]}`"
