"""Measure what enqueueing jobs in batches costs the program and the server, beside PgQueuer."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

import psutil  # type: ignore[import-untyped]

from benchmarks import figures
from benchmarks.bench import Bench
from benchmarks.fill import KIND, PAYLOAD_BYTES
from benchmarks.peers import pgqueuer
from benchmarks.result import Result, Table, Verdict
from benchmarks.server import connected
from surelane import Job, Queue

BATCH = 20
TARGET = 50e-6
WITHOUT_KEYS, PEER = "without keys", "PgQueuer"
Enqueue = Callable[[int], Awaitable[object]]
"""Enqueues one batch of so many jobs."""


@dataclass
class Costs:
    """CPU seconds per job, a figure of each round."""

    pid: int
    enqueue: Enqueue
    client: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)

    async def round(self, batches: int) -> None:
        for _ in range(20):
            await self.enqueue(BATCH)
        process = psutil.Process(self.pid)
        before, began = sum(process.cpu_times()[:2]), time.process_time()
        for _ in range(batches):
            await self.enqueue(BATCH)
        jobs = batches * BATCH
        self.client.append((time.process_time() - began) / jobs)
        self.server.append((sum(process.cpu_times()[:2]) - before) / jobs)

    def both(self) -> float:
        """The median of the rounds' sums."""
        return figures.median(
            [client + server for client, server in zip(self.client, self.server, strict=True)]
        )


async def measure(bench: Bench) -> Result:
    """Enqueue batches of each sort in turn."""
    batches = bench.size(1000, 50)
    text, number = "x" * (PAYLOAD_BYTES - 50), count()
    sorts: dict[str, Callable[[], Job]] = {
        WITHOUT_KEYS: lambda: Job(KIND, {"text": text}),
        "with item keys": lambda: Job(KIND, {"text": text}, item_key=f"item {next(number)}"),
        "in groups of two": lambda: Job(KIND, {"text": text}, group_key=f"group {next(number) // 2}"),
    }
    async with AsyncExitStack() as stack:
        queues = {name: await stack.enter_async_context(_ours(bench, job)) for name, job in sorts.items()}
        queues[PEER] = await stack.enter_async_context(_peer(bench))
        for _ in range(bench.rounds):
            for queue in queues.values():
                await queue.round(batches)
    return _result(queues, batches * BATCH)


@asynccontextmanager
async def _ours(bench: Bench, job: Callable[[], Job]) -> AsyncIterator[Costs]:
    async with bench.database() as database, connected(database.admin) as connection:
        queue = Queue(connection)
        yield Costs(
            connection.get_server_pid(), lambda size: queue.enqueue_many([job() for _ in range(size)])
        )


@asynccontextmanager
async def _peer(bench: Bench) -> AsyncIterator[Costs]:
    async with bench.database(empty=True) as database:
        await pgqueuer.install(database.admin)
        async with pgqueuer.enqueueing(database.admin) as (pid, enqueue):
            yield Costs(pid, enqueue)


def _result(queues: dict[str, Costs], jobs: int) -> Result:
    def middle(values: Sequence[float]) -> str:
        return figures.microseconds(figures.median(values))

    peer = queues[PEER].both()
    rows = [
        (
            name,
            *(middle(each.client), middle(each.server), figures.microseconds(each.both())),
            figures.ratio(each.both() / peer),
        )
        for name, each in queues.items()
    ]
    ours = queues[WITHOUT_KEYS].both()
    return Result(
        title="The cost of enqueueing",
        how=f"""
            One program enqueues {jobs:,} jobs per round on one connection, in batches of {BATCH},
            each in a transaction of its own. The figures are CPU time per job: of the program, and
            of the server's process for its connection. No worker runs. Medians of the rounds; the
            sorts take turns.
        """,
        table=Table(("jobs", "program", "server", "both", f"by {PEER}'s"), rows),
        verdicts=[
            Verdict("without keys: at most 50 µs of CPU per job", figures.microseconds(ours), ours <= TARGET)
        ],
    )
