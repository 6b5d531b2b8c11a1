"""Count the statements that an idle worker sends."""

import asyncio
import re

from benchmarks import consumer, figures
from benchmarks.bench import Bench
from benchmarks.fill import KIND
from benchmarks.result import Result, Table, Verdict
from benchmarks.server import connected
from benchmarks.wiretap import tapped
from surelane_service.engine import Engine

SETTLING = 3.0
"""Seconds in which a worker sends the statements of its start."""
YEARLY = "0 0 1 1 *"


async def measure(bench: Bench) -> Result:
    """Count the statements of an idle worker by function."""
    interval, intervals = bench.size(5, 1), bench.size(36, 8)
    async with bench.database() as database:
        async with connected(database.admin) as connection:
            await Engine(connection).set_cron("nightly", kind=KIND, schedule=YEARLY)
        async with (
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
            All statements that one worker without events sends in {intervals} poll intervals of
            {interval} s (jittered), counted on the wire after its first {SETTLING:g} s. They
            include the duties that run once a minute. One named schedule exists and is not due.
        """,
        table=Table(
            ("statement", "sent", "per poll interval"),
            [*rows, ("all", str(total), figures.ratio(total / intervals))],
        ),
        verdicts=[
            Verdict("at most 1 per poll interval", figures.ratio(total / intervals), total <= intervals)
        ],
    )


def _short(text: str) -> str:
    function = re.search(r"agent\.\w+", text)
    return f"`{function.group() if function else text[:40]}`"
