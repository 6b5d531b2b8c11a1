"""Measure how soon an idle system starts to handle an event, beside its peers."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from benchmarks import consumer, figures, load
from benchmarks.bench import Bench
from benchmarks.consumer import Consumer
from benchmarks.peers.registry import PEERS, Insert, Inserting, Peer
from benchmarks.result import Bars, Result, Table, Verdict
from benchmarks.server import connected
from surelane.calls import Connection

OURS = "surelane"
PAUSE = 0.05
"""Seconds between events on average, after which the system is idle again."""
WARM_UP = 10
P50_LIMIT, P99_LIMIT = 0.003, 0.015


@dataclass
class Queue:
    """A queue with an idle worker."""

    consumer: Consumer
    insert: Callable[[int], Awaitable[tuple[float, float]]]
    from_sent: list[float] = field(default_factory=list)
    from_commit: list[float] = field(default_factory=list)

    async def time(self, number: int) -> None:
        """Insert one event, and record the time until its handler starts."""
        sent, committed = await self.insert(number)
        started = await load.until_started(self.consumer, number)
        if number >= WARM_UP:
            self.from_sent.append(started - sent)
            self.from_commit.append(started - committed)


async def measure(bench: Bench) -> Result:
    """Give each queue one event in turn."""
    async with AsyncExitStack() as stack:
        queues = {OURS: await _ours(bench, stack)}
        for peer in PEERS:
            if peer.inserting:
                queues[peer.name] = await _peer(bench, stack, peer, peer.inserting)
        await asyncio.sleep(2)
        for number in range(WARM_UP + bench.size(500, 40)):
            for queue in queues.values():
                await queue.time(number)
                await asyncio.sleep(PAUSE * random.uniform(0.5, 1.5))
    return _result(queues)


async def _ours(bench: Bench, stack: AsyncExitStack) -> Queue:
    database = await stack.enter_async_context(bench.database())
    connection: Connection = await stack.enter_async_context(connected(database.admin))
    worker = await stack.enter_async_context(consumer.worker(database.worker))
    return Queue(worker, lambda number: load.insert_timed(connection, number))


async def _peer(bench: Bench, stack: AsyncExitStack, peer: Peer, inserting: Inserting) -> Queue:
    database = await stack.enter_async_context(bench.database(empty=True))
    await peer.install(database.admin)
    insert = await stack.enter_async_context(inserting(database.admin))
    process = await stack.enter_async_context(
        consumer.running(peer.name, peer.module, "listen", database.admin)
    )
    return Queue(process, lambda number: _timed(insert, number))


async def _timed(insert: Insert, number: int) -> tuple[float, float]:
    loop = asyncio.get_running_loop()
    sent = loop.time()
    await insert(number)
    return sent, loop.time()


def _result(queues: dict[str, Queue]) -> Result:
    def at(times: list[float], share: float) -> str:
        return figures.milliseconds(figures.percentile(times, share))

    rows = [
        (name, *(at(times, share) for times in (queue.from_commit, queue.from_sent) for share in (0.5, 0.99)))
        for name, queue in queues.items()
    ]
    p50 = {name: figures.percentile(queue.from_commit, 0.5) for name, queue in queues.items()}
    p99 = {name: figures.percentile(queue.from_commit, 0.99) for name, queue in queues.items()}
    peers = [name for name in queues if name != OURS]
    return Result(
        title="Latency of an idle system",
        how=f"""
            Single events are enqueued about {PAUSE * 1000:g} ms apart,
            {len(queues[OURS].from_sent)} for each queue, the queues in turn. Every worker is idle
            and runs all the time. Both latencies end at the handler's start. The first begins when
            the sender learns that its insert is committed; a worker may have started by then. The
            second begins when the sender sends the insert.
        """,
        table=Table(("queue", "from commit, p50", "p99", "from sending, p50", "p99"), rows),
        verdicts=[
            Verdict(
                "insert committed → handler started: p50 at most 3 ms",
                figures.milliseconds(p50[OURS]),
                p50[OURS] <= P50_LIMIT,
            ),
            Verdict("p99 at most 15 ms", figures.milliseconds(p99[OURS]), p99[OURS] <= P99_LIMIT),
            Verdict(
                "below every peer (p50)",
                ", ".join(f"{name} {figures.milliseconds(p50[name])}" for name in peers),
                all(p50[OURS] < p50[name] for name in peers),
            ),
        ],
        plots=[
            Bars(
                "Insert committed → handler started, idle, p50",
                "ms",
                {name: seconds * 1000 for name, seconds in p50.items()},
            )
        ],
    )
