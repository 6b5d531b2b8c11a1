"""Limits: how exactly a fleet keeps them, and what they cost a kind that is far from its limit."""

import asyncio
import json
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import AsyncExitStack

from benchmarks import consumer, figures, ours
from benchmarks.bench import Bench, at_rest
from benchmarks.fill import KIND, store_singly
from benchmarks.ours import Drain, drain
from benchmarks.programs.handlers import PERIOD, RATED, SEVERAL
from benchmarks.result import Bars, Result, Table, Verdict
from surelane.calls import Connection

WORKERS = 20
SECONDS = 60
MOST_OVER, LEAST_RATE = 1.01, 0.9
NONE, FAR, WORKSPACES = "no limit", "far from its limit", "far from its limit, per workspace"
AFTERWARDS = "far from its limit, which came after the events"
SPACES = 50

_SPANS = (
    "select result ->> 'began' as began, result ->> 'ended' as ended from agent.event_hist where kind = $1"
)


async def measure(bench: Bench) -> Result:
    """Flood a fleet with events of limited kinds; then drain queues with and without a limit, in turn."""
    rated, few = await _flooded(bench)
    rounds: dict[str, list[Drain]] = {}
    for _ in range(bench.rounds):
        for name, handlers, per, afterwards in (
            (NONE, "counting", None, False),
            (FAR, "far", "kind", False),
            (WORKSPACES, "far", "workspace", False),
            (AFTERWARDS, "far", "kind", True),
        ):
            done = await _drained(bench, handlers, per, afterwards=afterwards)
            rounds.setdefault(name, []).append(done)
            bench.say(f"{name}: {figures.rate(rounds[name][-1].rate)} events/s")
    return _result(bench, rated, few, rounds)


async def _flooded(bench: Bench) -> tuple[list[float], list[tuple[float, float]]]:
    """Return when events of kind ``rated`` began, and when each of kind ``few`` ran."""
    seconds = bench.size(SECONDS, 2 * PERIOD)
    async with bench.database() as database, AsyncExitStack() as stack:
        connection = await stack.enter_async_context(at_rest(database))
        workers = bench.size(WORKERS, 3)
        for _ in range(workers):
            await stack.enter_async_context(consumer.worker(database.worker, "limited"))
        while await connection.fetchval("select count(*) from agent.kind_limit") < 2:  # noqa: ASYNC110 - no signal
            await asyncio.sleep(0.2)
        for kind in ("rated", "few"):
            await connection.execute(
                "select agent.enqueue($1) from generate_series(1, $2)", kind, seconds * 2 * (RATED // PERIOD)
            )
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            # Some more all the time, so that workers are woken.
            await connection.execute("select agent.enqueue('rated'), agent.enqueue('few')")
            await asyncio.sleep(0.1)
        rated, few = [await _spans(connection, kind) for kind in ("rated", "few")]
        await connection.execute("delete from agent.event where claimed_by is null")
    return [began for began, _ in rated], few


async def _spans(connection: Connection, kind: str) -> list[tuple[float, float]]:
    rows = await connection.fetch(_SPANS, kind)
    return sorted((float(row["began"]), float(row["ended"])) for row in rows)


async def _drained(bench: Bench, handlers: str, per: str | None, *, afterwards: bool = False) -> Drain:
    """Drain a queue of events that were stored singly, under the limit or ``afterwards`` before it."""
    count = bench.size(100_000, 20_000)

    async def stored(connection: Connection) -> None:
        if not afterwards:
            await _limit(connection, per)
        await store_singly(connection, count, workspaces=SPACES)
        if afterwards:
            await _limit(connection, per)
            while await connection.fetchval("select agent.park_events($1, 5000)", KIND):
                pass

    return await drain(bench, count, stored, lambda database: consumer.worker(database.worker, handlers))


async def _limit(connection: Connection, per: str | None) -> None:
    if per is None:
        return
    body = {"per": per, "concurrency": 10_000, "rate": 1_000_000, "period": 60}
    await connection.execute(
        "select agent.declare_limits('fill', array[$1], $2)", KIND, json.dumps({KIND: body})
    )
    if per == "workspace":  # the worker declares a limit per kind
        await connection.execute("select agent.set_limit($1, null, null, null, $2)", KIND, per)


def at_most(moments: Sequence[float], period: float) -> int:
    """Return the most moments in any period."""
    return max((bisect_left(moments, moment + period) - nth for nth, moment in enumerate(moments)), default=0)


def at_once(spans: Sequence[tuple[float, float]]) -> int:
    """Return the most spans at one moment."""
    changes = sorted([(began, 1) for began, _ in spans] + [(ended, -1) for _, ended in spans])
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


def _result(
    bench: Bench,
    rated: Sequence[float],
    few: Sequence[tuple[float, float]],
    rounds: dict[str, list[Drain]],
) -> Result:
    seconds, workers = bench.size(SECONDS, 2 * PERIOD), bench.size(WORKERS, 3)
    rates = ours.rates(rounds)
    period, whole, running = at_most(rated, PERIOD), at_most(rated, seconds), at_once(few)
    over = max(period / RATED, whole / (RATED * seconds / PERIOD))
    return Result(
        title="Limits across the fleet",
        how=f"""
            {workers} workers are flooded for {seconds} s with events of two kinds: one may begin
            {RATED} times in {PERIOD} s, the other may run {SEVERAL} at once. Handlers note when
            they begin and end. Then one worker drains three sorts of queues in turn, in {bench.rounds} rounds:
            without a limit; with a limit for the kind that is never reached; and with such a limit for each of
            {SPACES} workspaces. A transaction of its own stores each event, after the limit. In a fourth queue
            the limit comes after the events, so every row is moved once. The handlers of all four do nothing.
        """,
        table=Table(
            ("what", "measured", "limit"),
            [
                (f"begun in any {PERIOD} s", str(period), str(RATED)),
                (f"begun in {seconds} s", str(whole), str(RATED * seconds // PERIOD)),
                ("running at once", str(running), str(SEVERAL)),
                *((f"events/s, {name}", figures.rate(rate), "") for name, rate in rates.items()),
            ],
        ),
        verdicts=[
            Verdict("at most 1 % above a rate", figures.ratio(over), over <= MOST_OVER),
            Verdict("no more at once than the limit", figures.ratio(running / SEVERAL), running <= SEVERAL),
            *(
                Verdict(
                    f"{name}: at least 0.9 of the rate without a limit",
                    figures.ratio(rates[name] / rates[NONE]),
                    rates[name] / rates[NONE] >= LEAST_RATE,
                )
                for name in (FAR, WORKSPACES)
            ),
        ],
        plots=[Bars("One worker drains a queue", "events/s", rates)],
    )
