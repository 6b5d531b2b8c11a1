"""Measure what steps, replays and children cost, what suspended events cost others, and how soon a handler stops."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from benchmarks import consumer, figures
from benchmarks.bench import Bench, at_rest
from benchmarks.consumer import Consumer
from benchmarks.fill import KIND
from benchmarks.programs.handlers import TIMED
from benchmarks.result import Result, Table, Verdict
from benchmarks.server import connected
from surelane.calls import Connection
from surelane.queue import Queue
from surelane_service.engine import Engine

STEP_LIMIT = 0.003
CANCEL_LIMIT = 0.1
REPLAY_LIMIT = 1.2
CHILD_LIMIT = 0.005
STEPS = 10_000
"""Steps that a handler has stored when its worker is killed."""
NAME = "mortal"
"""A worker of the name of a killed one ends its claims at once."""
LONGEST = 300.0
"""Seconds that a handler of many steps or children may take."""
WARM = 20
"""The first steps and children are not counted."""
WORKERS = 3
HANGING = 8
"""Handlers that run in each worker while one after another is cancelled."""
LONG = 1.5
"""Seconds that handlers run before the first one is cancelled: a worker listens after half a second."""
CALLS = 300
NOTHING = 0.0002
"""Seconds that count as nothing: less than the scatter of one statement's round trip."""

SWEEP = "a sweep"
"""Runs about once a minute in a fleet. The table's statistics make it plan its statements anew."""

_SUSPENDED = """
    with new as (
        insert into agent.event (event_ts, vt, event, kind, group_key, head, lane)
        select t, t + interval '30 days', '{}', $2, 'suspended ' || i, true, agent.lane_in(0, 'suspended ' || i)
        from generate_series(1, $1) as i cross join lateral (select clock_timestamp()) as now (t)
        returning id, event_ts, vt
    )
    insert into agent.step (event_id, name, nth, sort, event_ts, attempt, started_at, due_at)
    select id, 'answer', 1, 'wait', event_ts, 1, event_ts, vt from new
"""


@dataclass
class Costs:
    """The times of statements, by what they do."""

    times: dict[str, list[float]] = field(default_factory=dict)

    async def add(self, name: str, call: Callable[[], Awaitable[object]]) -> None:
        """Time one call."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await call()
        self.times.setdefault(name, []).append(loop.time() - began)

    def p50(self, name: str) -> float:
        """Return the median of a statement."""
        return figures.percentile(self.times[name], 0.5)


async def measure(bench: Bench) -> Result:
    """Measure steps, suspended events and cancellations, one after another."""
    steps = await _steps(bench)
    replays = [await _replay(bench) for _ in range(bench.rounds)]
    children = await _children(bench)
    count = bench.size(100_000, 2_000)
    without, beside = await _costs(bench, 0, count)
    cancels = await _cancels(bench)
    return _result(bench, count, (steps, replays, children), without, beside, cancels)


async def _steps(bench: Bench) -> list[float]:
    """Return how long each of many empty steps took."""
    async with (
        bench.database() as database,
        connected(database.admin) as connection,
        consumer.worker(database.worker, "durable"),
    ):
        identity = await Queue(connection).enqueue(KIND, {"steps": bench.size(1000, 50) + WARM})
        return (await _ended(connection, identity))[WARM:]


async def _replay(bench: Bench) -> float:
    """Return how long a handler takes to come again to where its worker was killed, by SIGKILL."""
    async with bench.database() as database, connected(database.admin) as connection:
        payload = {"steps": bench.size(STEPS, 100)}
        identity = await Queue(connection).enqueue("bench-replay", payload)
        async with consumer.worker(database.worker, "durable", SURELANE_WORKER_NAME=NAME) as worker:
            await _stopped([worker], 0, within=LONGEST)
            await worker.kill()
        async with consumer.worker(database.worker, "durable", SURELANE_WORKER_NAME=NAME):
            began, ended = await _ended(connection, identity)
    return ended - began


async def _children(bench: Bench) -> list[float]:
    """Return how long each of many children took beyond its handler: start, result and the parent's next attempt."""
    async with (
        bench.database() as database,
        connected(database.admin) as connection,
        consumer.worker(database.worker, "durable"),
    ):
        identity = await Queue(connection).enqueue("bench-parent", {"children": bench.size(100, 5) + WARM})
        return (await _ended(connection, identity))[WARM:]


async def _ended(connection: Connection, identity: int) -> list[float]:
    """Wait until an event has ended; return its result."""
    async with asyncio.timeout(LONGEST):
        while not (  # noqa: ASYNC110 - the database has no event to wait for
            row := await connection.fetchrow("select result from agent.event_hist where id = $1", identity)
        ):
            await asyncio.sleep(0.05)
    return list(json.loads(row["result"]))


async def _costs(bench: Bench, *suspended: int) -> list[Costs]:
    """Time the statements of workers in queues with suspended events, in turn."""
    async with AsyncExitStack() as stack:
        connections = [await _queue(bench, stack, count) for count in suspended]
        costs = [Costs() for _ in connections]
        for _ in range(bench.size(CALLS, 20)):
            for connection, cost in zip(connections, costs, strict=True):
                engine = Engine(connection)
                await cost.add("a claim that finds nothing", partial(_claim, engine))
                await cost.add("a poll", partial(engine.peek_events, [KIND], timedelta(seconds=5)))
                await cost.add(SWEEP, partial(engine.sweep_events, kinds=[KIND], mend=False))
                await Queue(connection).enqueue(KIND)
                await cost.add("a claim of one event", partial(_claim, engine))
                await connection.execute("delete from agent.event where claimed_by is not null")
    return costs


async def _queue(bench: Bench, stack: AsyncExitStack, suspended: int) -> Connection:
    """Make a queue with suspended events; return a connection to it."""
    database = await stack.enter_async_context(bench.database())
    async with connected(database.admin) as connection:
        await connection.execute("insert into agent.kind (kind) values ($1) on conflict do nothing", KIND)
        await connection.execute(_SUSPENDED, suspended, KIND)
    return await stack.enter_async_context(at_rest(database))


async def _claim(engine: Engine) -> object:
    return await engine.claim_events([KIND], 10, worker="bench")


async def _cancels(bench: Bench) -> list[float]:
    """Return the seconds from each request to cancel until the handler stopped."""
    rounds = bench.size(8, 1)
    times: list[float] = []
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(bench.database())
        connection: Connection = await stack.enter_async_context(connected(database.admin))
        workers = [
            await stack.enter_async_context(consumer.worker(database.worker, "durable", concurrency=HANGING))
            for _ in range(WORKERS)
        ]
        queue, loop, first = Queue(connection), asyncio.get_running_loop(), 0
        for _ in range(rounds):
            numbers = list(range(first, first + WORKERS * HANGING))
            first += len(numbers)
            for number in numbers:
                await queue.enqueue("bench-hang", item_key=f"{TIMED}{number}")
            await _gone(connection, "claimed_by is null")
            await asyncio.sleep(LONG)
            random.shuffle(numbers)
            for number in numbers:
                asked = loop.time()
                await queue.cancel(f"{TIMED}{number}")
                times.append(await _stopped(workers, number) - asked)
            await _gone(connection, "true")
    return times


async def _gone(connection: Connection, which: str) -> None:
    """Wait until no event of the queue meets a condition."""
    while await connection.fetchval(f"select count(*) from agent.event where {which}"):  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def _stopped(workers: Sequence[Consumer], number: int, within: float = 30) -> float:
    async with asyncio.timeout(within):
        while True:
            for worker in workers:
                if number in worker.started:
                    return worker.started[number]
            await asyncio.sleep(0.005)


def _result(
    bench: Bench,
    count: int,
    handled: tuple[Sequence[float], Sequence[float], Sequence[float]],
    without: Costs,
    beside: Costs,
    cancels: Sequence[float],
) -> Result:
    steps, replays, children = handled

    def shares(times: Sequence[float]) -> tuple[str, str]:
        return tuple(figures.milliseconds(figures.percentile(times, share)) for share in (0.5, 0.99))  # type: ignore[return-value]

    stored = bench.size(STEPS, 100)
    rows = [
        ("an empty step", *shares(steps)),
        (f"{stored:,} steps replayed after kill -9", *shares(replays)),
        ("a child's start and result, beyond its handler", *shares(children)),
        ("request to cancel → handler stopped", *shares(cancels)),
    ]
    for name in without.times:
        rows += [(name, *shares(without.times[name]))]
        rows += [(f"{name}, beside {count:,} suspended events", *shares(beside.times[name]))]
    extra = {name: beside.p50(name) - without.p50(name) for name in without.times if name != SWEEP}
    p50, p99 = figures.percentile(steps, 0.5), figures.percentile(cancels, 0.99)
    replay, child = figures.median(replays), figures.percentile(children, 0.5)
    return Result(
        title="Durable handlers",
        how=f"""
            One handler takes {len(steps)} empty steps one after another. Another one has stored {stored:,} when
            its worker is killed; the time is that of its next attempt, in {len(replays)} rounds. A third one runs
            {len(children)} children one after another. {count:,} suspended events,
            each in a group of its own, wait for a signal. The statements of a worker are timed beside
            them and in an empty queue, in turn. {WORKERS} workers run {HANGING} handlers each, and one after another
            is cancelled, {len(cancels)} in all.
        """,
        table=Table(("what", "p50", "p99"), rows),
        verdicts=[
            Verdict("a step costs at most 3 ms (p50)", figures.milliseconds(p50), p50 <= STEP_LIMIT),
            Verdict(
                f"{stored:,} steps are replayed after a kill within 1.2 s (median)",
                figures.milliseconds(replay),
                replay <= REPLAY_LIMIT,
            ),
            Verdict(
                "a child's start and result take at most 5 ms beyond its handler (p50)",
                figures.milliseconds(child),
                child <= CHILD_LIMIT,
            ),
            Verdict(
                f"{count:,} suspended events cost a claim and a poll nothing (0.2 ms at most, p50)",
                ", ".join(f"{name} {figures.milliseconds(more)}" for name, more in extra.items()),
                all(more <= NOTHING for more in extra.values()),
            ),
            Verdict(
                "a cancelled handler stops within 100 ms (p99)",
                figures.milliseconds(p99),
                p99 <= CANCEL_LIMIT,
            ),
        ],
    )
