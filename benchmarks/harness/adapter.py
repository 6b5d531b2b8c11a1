"""Run Surelane in the public harness for PostgreSQL job queues: hardbyte/postgresql-job-queue-benchmarking.

One process migrates the database, enqueues jobs as the harness asks, and handles them with the real worker. It reports
on standard output, a JSON object a line; logs go to standard error. The contract is the harness's
``CONTRIBUTING_ADAPTERS.md``. Standard output is the telemetry's alone, so that the logs of the worker, which writes
there, are led to standard error.

The harness may restart PostgreSQL, and asks for more jobs in some phases. Jobs that are due while the database is away
are not enqueued later: they are the load of that moment.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import uvloop

from surelane import Job, Queue, SurelaneError, __version__
from surelane.calls import DRIVER_ERRORS, Pool
from surelane_worker import Context, Event, Handlers
from surelane_worker.wiring import main as worker

MANIFEST = json.loads((Path(__file__).parent / "adapter.json").read_text())
KIND = "bench"
WINDOW = 30.0
"""Seconds for which a latency counts."""
LATENCIES = 32_768
"""How many latencies of a name are kept: so memory is bounded at any rate."""
LATENCY_OF = {
    "producer_call": "call",
    "producer": "job",
    "subscriber": "start",
    "claim": "start",
    "end_to_end": "end",
}
"""The harness's names of latencies, and ours: of an enqueue and its share for one job; until a handler starts, ends."""
LOOK = """select count(*) filter (where claimed_by is null and vt <= agent.clock()) as waiting
, count(*) filter (where claimed_by is not null) as running from agent.event"""
BEFORE = 0.2
"""Seconds from a look at the queue to the sample that reports it."""
CONNECT_WITHIN = 5.0
"""Seconds. A server that is being restarted may not answer at all."""


def _number(name: str, default: int) -> int:
    return int(os.environ.get(name, default))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True)
class Settings:
    """What the harness sets, by its own names in the environment."""

    database_url: str
    mode: str
    rate: int
    depth: int
    concurrency: int
    payload_bytes: int
    work: float
    every: int
    batch: int
    period: float
    paced_by_harness: bool
    rate_file: str | None
    instance: int
    produces: bool

    @classmethod
    def read(cls) -> "Settings":
        return cls(
            database_url=os.environ["DATABASE_URL"],
            mode=os.environ.get("PRODUCER_MODE", "fixed"),
            rate=_number("PRODUCER_RATE", 800),
            depth=_number("TARGET_DEPTH", 1000),
            concurrency=_number("WORKER_COUNT", 32),
            payload_bytes=_number("JOB_PAYLOAD_BYTES", 256),
            work=_number("JOB_WORK_MS", 1) / 1000,
            every=_number("SAMPLE_EVERY_S", 5),
            batch=max(1, _number("PRODUCER_BATCH_MAX", 128)),
            period=max(1, _number("PRODUCER_BATCH_MS", 25)) / 1000,
            paced_by_harness=os.environ.get("PRODUCER_PACING", "adapter") == "harness",
            rate_file=os.environ.get("PRODUCER_RATE_CONTROL_FILE"),
            instance=_number("BENCH_INSTANCE_ID", 0),
            produces=not (_number("PRODUCER_ONLY_INSTANCE_ZERO", 0) and _number("BENCH_INSTANCE_ID", 0)),
        )


@dataclass
class Counts:
    """What happened so far in this process."""

    rate: float = 0.0
    """Jobs per second that the producer was last asked for."""
    enqueued: int = 0
    started: int = 0
    completed: int = 0
    waiting: int = 0
    """Jobs that waited when the queue was last looked at."""
    running: int = 0
    moved: int = 0
    """Jobs that this process had enqueued and not started at that moment."""
    latencies: defaultdict[str, deque[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=LATENCIES))
    )
    """When they were measured, and milliseconds."""

    def took(self, name: str, seconds: float) -> None:
        """Keep a latency."""
        self.latencies[name].append((time.monotonic(), seconds * 1000))

    def depth(self) -> int:
        """Return how many jobs wait now, if this process alone enqueues and handles."""
        return self.waiting + self.enqueued - self.started - self.moved


handlers = Handlers()
counts = Counts()
_work = Settings.read().work if "DATABASE_URL" in os.environ else 0.0


@handlers.on(KIND)
async def work(event: Event, ctx: Context) -> None:  # noqa: ARG001 - a handler's signature
    """Take as long as the harness asks."""
    counts.started += 1
    counts.took("start", time.time() - event.payload["at"])
    if _work:
        await asyncio.sleep(_work)
    counts.completed += 1
    counts.took("end", time.time() - event.payload["at"])


class Telemetry:
    """The harness's end of standard output. Everything else that is written there goes to standard error."""

    def __init__(self, instance: int) -> None:
        self._instance = instance
        self._lines = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def emit(self, **record: Any) -> None:  # noqa: ANN401 - any JSON value
        """Write one record."""
        record |= {"system": MANIFEST["system"], "instance_id": self._instance}
        self._lines.write(json.dumps(record) + "\n")

    def describe(self, schema: str) -> None:
        """Write what the harness compares with ``adapter.json``."""
        described = {name: MANIFEST[name] for name in ("event_tables", "extensions", "db_name")}
        self.emit(
            kind="descriptor", version=__version__, schema_version=schema, started_at=_now(), **described
        )

    def sample(self, metric: str, value: float, window: float) -> None:
        """Write one figure, measured over so many seconds; 0 for one of this moment."""
        about = {"kind": "adapter", "subject_kind": "adapter", "subject": ""}
        self.emit(t=_now(), metric=metric, value=value, window_s=window, **about)


async def produce(settings: Settings, queue: Queue) -> None:
    """Enqueue what is asked for. What the database refuses is lost, and said once until it takes jobs again."""
    said = ""
    async for number in _asked(settings):
        began = time.monotonic()
        try:
            await _enqueue(settings, queue, number)
        except SurelaneError as error:
            if said != (said := type(error).__name__):
                print(f"{error!r}: jobs are lost", file=sys.stderr)
            continue
        if said:
            said = ""
            print("jobs are enqueued again", file=sys.stderr)
        counts.enqueued += number
        counts.took("call", time.monotonic() - began)
        counts.took("job", (time.monotonic() - began) / number)


def _asked(settings: Settings) -> AsyncIterator[int]:
    """Yield how many jobs to enqueue at once.

    Where the harness names a file with the rate, that is the rate, and its lines are not read: they come at the rate of
    the start, or at the file's own.
    """
    if settings.mode != "fixed":
        return _up_to_depth(settings)
    if settings.paced_by_harness and settings.rate_file is None:
        return _told(settings)
    return _at_rate(settings)


async def _up_to_depth(settings: Settings) -> AsyncIterator[int]:
    while True:
        await asyncio.sleep(settings.period)
        if (due := settings.depth - counts.depth()) > 0:
            yield min(due, settings.batch)


async def _at_rate(settings: Settings) -> AsyncIterator[int]:
    owed, last = 0.0, time.monotonic()
    while True:
        await asyncio.sleep(settings.period)
        counts.rate = _rate(settings, counts.rate)
        now = time.monotonic()
        owed, last = owed + counts.rate * (now - last), now
        while owed >= 1:
            number = min(int(owed), settings.batch)
            owed -= number
            yield number


def _rate(settings: Settings, before: float) -> float:
    """Return the jobs per second that the harness asks for now. It may be writing the file: then the last ones."""
    if settings.rate_file is None:
        return settings.rate
    with suppress(OSError, ValueError):
        return max(0.0, float(Path(settings.rate_file).read_text()))
    return before


async def _told(settings: Settings) -> AsyncIterator[int]:
    """Read standard input. It can be connected once."""
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async for line in lines:
        match line.split():
            case [b"ENQUEUE", number] if number.isdigit():
                for first in range(0, int(number), settings.batch):
                    yield min(settings.batch, int(number) - first)
            case other:
                print(f"not understood: {other}", file=sys.stderr)


async def _enqueue(settings: Settings, queue: Queue, number: int) -> None:
    padding = "x" * max(0, settings.payload_bytes - 64)
    job = Job(kind=KIND, payload={"at": time.time(), "padding": padding})
    await queue.enqueue_many([job] * number)


async def watch(settings: Settings, pool: Pool) -> None:
    """Count what waits and runs, shortly before each sample. The first replica does it for all.

    A look reads the whole table, so more of them would be a load of their own. A producer that keeps to a depth looks
    each second, and counts what it does itself from there.
    """
    period = settings.every if settings.mode == "fixed" else 1
    while True:
        await asyncio.sleep(period - (time.time() + BEFORE) % period)
        try:
            ((counts.waiting, counts.running),) = await pool.fetch(LOOK)
            counts.moved = counts.enqueued - counts.started
        except DRIVER_ERRORS as error:
            print(f"{error!r}: the queue was not looked at", file=sys.stderr)


async def sample(settings: Settings, telemetry: Telemetry) -> None:
    """Report at each multiple of the interval on the wall clock, as every system's adapter does."""
    before, last = (counts.enqueued, counts.completed), time.monotonic()
    while True:
        await asyncio.sleep(settings.every - time.time() % settings.every)
        now, after = time.monotonic(), (counts.enqueued, counts.completed)
        enqueued, completed = ((new - old) / (now - last) for new, old in zip(after, before, strict=True))
        before, last = after, now
        for name, ours in LATENCY_OF.items():
            recent = sorted(value for at, value in counts.latencies[ours] if at > now - WINDOW)
            for share in (50, 95, 99):
                value = recent[(len(recent) - 1) * share // 100] if recent else 0.0
                telemetry.sample(f"{name}_p{share}_ms", value, WINDOW)
        telemetry.sample("enqueue_rate", enqueued, settings.every)
        telemetry.sample("completion_rate", completed, settings.every)
        if settings.instance == 0:
            telemetry.sample("queue_depth", counts.waiting, 0)
            telemetry.sample("running_depth", counts.running, 0)
            telemetry.sample("producer_target_rate", counts.rate, 0)


async def run(settings: Settings) -> None:
    """Produce, handle and report until SIGTERM."""
    telemetry, stop = Telemetry(settings.instance), asyncio.Event()
    counts.rate = settings.rate
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    async with (
        asyncpg.create_pool(settings.database_url, min_size=1, max_size=4, timeout=CONNECT_WITHIN) as pool,
        asyncio.TaskGroup() as beside,
    ):
        telemetry.describe(await pool.fetchval("select version from agent.version"))
        tasks = [beside.create_task(sample(settings, telemetry))]
        if settings.produces:
            tasks.append(beside.create_task(produce(settings, Queue(pool))))
        if settings.instance == 0:
            tasks.append(beside.create_task(watch(settings, pool)))
        await worker(stop)
        for task in tasks:
            task.cancel()


def main() -> None:
    """Migrate, then run what ``SCENARIO`` names."""
    settings = Settings.read()
    subprocess.run([sys.executable, "-m", "surelane_migrations", "apply"], check=True, stdout=sys.stderr)
    scenario = os.environ.get("SCENARIO", "long_horizon")
    if scenario == "long_horizon":
        os.environ |= {
            "SURELANE_HANDLERS": "benchmarks.harness.adapter:handlers",
            "SURELANE_CONCURRENCY": str(settings.concurrency),
            "SURELANE_PRIVATE_PORT": "0",
            "SURELANE_PRIVATE_HOST": "127.0.0.1",
            "SURELANE_DRAIN_TIMEOUT": "3s",
            "LOG_LEVEL": os.environ.get("LOG_LEVEL", "warning"),
        }
        uvloop.run(run(settings))
    elif scenario != "migrate_only":
        sys.exit(f"SCENARIO={scenario} is unknown: long_horizon and migrate_only are")


if __name__ == "__main__":
    # By its own name, so that the worker loads these handlers and not a second copy of them.
    from benchmarks.harness import adapter  # noqa: PLW0406

    adapter.main()
