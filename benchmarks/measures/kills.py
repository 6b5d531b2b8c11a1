"""Measure for how long a fleet ends no event when the worker that answers notifications is killed."""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import count, pairwise

from benchmarks import consumer, figures, load
from benchmarks.bench import Bench, Database
from benchmarks.consumer import Consumer
from benchmarks.result import Lines, Result, Table, Verdict
from benchmarks.server import connected
from surelane.calls import Connection

WORKERS, CONCURRENCY = 2, 32
RATE = 400
"""Events a second: a tenth of the slots is busy."""
KILLS, QUICK_KILLS = 10, 1
WATCHED = 12.0
"""Seconds after a kill that are looked at; then another worker starts in place of the killed one."""
SETTLED = 3.0
SOON, LATER = 1.5, 5.0
"""Seconds after a kill: in which a pause of its own begins, and from which on pauses are the usual ones."""
STARTED_WITHIN = 60.0
MOST_PAUSE, AGAIN_WITHIN = 0.3, 3.0

_RESPONDER = """
    select w.name from agent.worker as w
    join pg_locks as s on s.locktype = 'advisory' and s.classid = agent.session_class()::oid
    and s.objid::int8::int4 = w.session
    join pg_locks as p on p.pid = s.pid and p.locktype = 'advisory' and p.objsubid = 1
    and p.classid::int8 << 32 | p.objid::int8 = agent.position_lock(w.kinds, $1)
"""
_ENDS = """
    select extract(epoch from finished_at)::float8 from agent.event_hist
    where finished_at between to_timestamp($1::float8 - 1) and to_timestamp($2::float8) order by finished_at
"""
_AGAIN = """
    select extract(epoch from max(claimed[2]))::float8 from agent.event_hist
    where claimed[2] > to_timestamp($1::float8)
"""


@dataclass(frozen=True)
class Kill:
    """What followed a kill, in seconds."""

    pause: float
    """The longest time without an end that began before the kill or soon after."""
    usual: float
    """The longest one later: that of a busy machine."""
    again: float
    """Until the last of the killed worker's events was claimed again."""
    events: int
    """How many those were."""


async def measure(bench: Bench) -> Result:
    """Kill the responder time after time, under a steady load."""
    kills: list[Kill] = []
    async with (
        bench.database() as database,
        connected(database.admin) as connection,
        AsyncExitStack() as stack,
    ):
        names = (f"worker-{nth}" for nth in count(1))
        workers: dict[str, Consumer] = {}
        for nth in range(bench.size(KILLS, QUICK_KILLS)):
            while len(workers) < WORKERS:
                await _start(stack, database, workers, next(names))
            await _until_settled(connection)
            if nth == 0:  # a backlog would make all of them attentive
                await stack.enter_async_context(load.at_rate(database.admin, RATE))
                await asyncio.sleep(SETTLED)
            kills.append(await _kill(connection, workers))
            kill = kills[-1]
            pauses = f"no end for {kill.pause * 1000:.0f} ms, later {kill.usual * 1000:.0f} ms"
            bench.say(f"{pauses}; {kill.events} again after {kill.again:.2f} s")
    return _result(kills)


async def _start(stack: AsyncExitStack, database: Database, workers: dict[str, Consumer], name: str) -> None:
    running = consumer.worker(database.worker, "napping", concurrency=CONCURRENCY, SURELANE_WORKER_NAME=name)
    workers[name] = await stack.enter_async_context(running)


async def _until_settled(connection: Connection) -> None:
    """Wait until all positions are taken, and some more."""
    async with asyncio.timeout(STARTED_WITHIN):
        while not await connection.fetchval(_RESPONDER, 1):  # noqa: ASYNC110 - no signal
            await asyncio.sleep(0.2)
    await asyncio.sleep(SETTLED)


async def _kill(connection: Connection, workers: dict[str, Consumer]) -> Kill:
    """Kill the responder; return what followed."""
    name = await connection.fetchval(_RESPONDER, 0)
    at = time.time()
    await workers.pop(name).kill()
    held = await connection.fetchval("select count(*) from agent.event where claimed_by = $1", name)
    await asyncio.sleep(at + WATCHED - time.time())
    ends = [row[0] for row in await connection.fetch(_ENDS, at, at + WATCHED)]
    pauses = [(earlier - at, later - earlier) for earlier, later in pairwise([*ends, at + WATCHED])]
    after = max(pause for began, pause in pauses if began < SOON and began + pause > 0)
    usual = max((pause for began, pause in pauses if began >= LATER), default=0.0)
    again = await connection.fetchval(_AGAIN, at) if held else at
    return Kill(after, usual, (again or at + WATCHED) - at, held)


def _result(kills: list[Kill]) -> Result:
    pauses, usual = [kill.pause for kill in kills], [kill.usual for kill in kills]
    again = [kill.again for kill in kills if kill.events] or [0.0]
    longest, last = max(pauses), max(again)
    return Result(
        title="A fleet whose responder is killed",
        how=f"""
            {WORKERS} workers with default settings and {CONCURRENCY} slots share {RATE} events/s,
            whose handlers take 10 ms. {len(kills)} times the worker that answers notifications gets
            `kill -9`; another one starts {WATCHED:g} s later. The pause is the longest time without
            an end that began by {SOON:g} s after the kill. The longest one from {LATER:g} s on is
            that of a machine with much else to do. The events that ran are claimed again by the
            other worker.
        """,
        table=Table(
            ("", "p50", "the longest"),
            [
                (name, figures.milliseconds(figures.median(values)), figures.milliseconds(max(values)))
                for name, values in (("pause of the fleet", pauses), ("the same, later", usual))
            ]
            + [
                ("kill → claimed again", f"{figures.median(again):.2f} s", f"{last:.2f} s"),
            ],
        ),
        verdicts=[
            Verdict("no event ends for at most 300 ms", figures.milliseconds(longest), longest <= MOST_PAUSE),
            Verdict("claimed again within 3 s", f"{last:.2f} s", last <= AGAIN_WITHIN),
        ],
        plots=[
            Lines(
                "Time without an end, by kill",
                "kill",
                "ms",
                {"pause": [(float(nth), pause * 1000) for nth, pause in enumerate(pauses, 1)]},
            )
        ],
    )
