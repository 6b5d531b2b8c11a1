"""Run Surelane in the public harness for PostgreSQL job queues: hardbyte/postgresql-job-queue-benchmarking.

One process migrates the database, enqueues jobs as the harness asks, and handles them with the real worker. It reports
on standard output, a JSON object a line; logs go to standard error. The contract is the harness's
``CONTRIBUTING_ADAPTERS.md``. Standard output is the telemetry's alone, so that the logs of the worker, which writes
there, are led to standard error.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import uvloop

from surelane import Job, Queue, __version__
from surelane_worker import Context, Event, Handlers
from surelane_worker.wiring import main as worker

MANIFEST = json.loads((Path(__file__).parent / "adapter.json").read_text())
KIND = "bench"
WINDOW = 30.0
"""Seconds for which a latency counts."""
LATENCIES = 32_768
"""How many latencies are kept: so memory is bounded at any rate."""
WAITING = "select count(*) from agent.event where claimed_by is null and vt <= agent.clock()"


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
    paced_by_harness: bool
    instance: int

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
            paced_by_harness=os.environ.get("PRODUCER_PACING", "adapter") == "harness",
            instance=_number("BENCH_INSTANCE_ID", 0),
        )


@dataclass
class Counts:
    """What happened so far in this process."""

    enqueued: int = 0
    completed: int = 0
    depth: int = 0
    latencies: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=LATENCIES))
    """When handlers started, and how many milliseconds after their jobs were enqueued."""


handlers = Handlers()
counts = Counts()
_work = Settings.read().work if "DATABASE_URL" in os.environ else 0.0


@handlers.on(KIND)
async def work(event: Event, ctx: Context) -> None:  # noqa: ARG001 - a handler's signature
    """Take as long as the harness asks."""
    counts.latencies.append((time.monotonic(), (time.time() - event.payload["at"]) * 1000))
    if _work:
        await asyncio.sleep(_work)
    counts.completed += 1


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
    """Enqueue jobs: as many as each line of standard input asks for, or at a rate, or up to a depth."""
    if settings.paced_by_harness and settings.mode == "fixed":
        await _as_told(settings, queue)
    period, owed, last = 0.025, 0.0, time.monotonic()
    while True:
        await asyncio.sleep(period)
        now = time.monotonic()
        owed += settings.rate * (now - last)
        last = now
        due = int(owed) if settings.mode == "fixed" else settings.depth - counts.depth
        owed -= int(owed)
        if due > 0:
            await _enqueue(settings, queue, due)
            counts.depth += due


async def _as_told(settings: Settings, queue: Queue) -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async for line in lines:
        match line.split():
            case [b"ENQUEUE", number]:
                await _enqueue(settings, queue, int(number))
            case other:
                print(f"not understood: {other}", file=sys.stderr)
    await asyncio.Event().wait()  # the harness closed its end: it sends SIGTERM next


async def _enqueue(settings: Settings, queue: Queue, number: int) -> None:
    padding = "x" * max(0, settings.payload_bytes - 64)
    job = Job(kind=KIND, payload={"at": time.time(), "padding": padding})
    await queue.enqueue_many([job] * number)
    counts.enqueued += number


async def watch_depth(pool: asyncpg.Pool) -> None:
    """Count what waits. The first replica does it for all."""
    while True:
        counts.depth = await pool.fetchval(WAITING)
        await asyncio.sleep(0.2)


async def sample(settings: Settings, telemetry: Telemetry) -> None:
    """Report at each multiple of the interval on the wall clock, as every system's adapter does."""
    before, last = (counts.enqueued, counts.completed), time.monotonic()
    while True:
        await asyncio.sleep(settings.every - time.time() % settings.every)
        now, after = time.monotonic(), (counts.enqueued, counts.completed)
        enqueued, completed = ((new - old) / (now - last) for new, old in zip(after, before, strict=True))
        before, last = after, now
        recent = sorted(value for at, value in counts.latencies if at > now - WINDOW)
        for share in (50, 95, 99):
            value = recent[(len(recent) - 1) * share // 100] if recent else 0.0
            telemetry.sample(f"claim_p{share}_ms", value, WINDOW)
        telemetry.sample("enqueue_rate", enqueued, settings.every)
        telemetry.sample("completion_rate", completed, settings.every)
        if settings.instance == 0:
            telemetry.sample("queue_depth", counts.depth, 0)
            telemetry.sample("producer_target_rate", settings.rate, 0)


async def lasting(call: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Begin again a second after an error: the harness restarts PostgreSQL in some phases."""
    while True:
        try:
            await call()
        except Exception as error:  # noqa: BLE001 - the run goes on after any error
            print(f"{error!r}: again in a second", file=sys.stderr)
        await asyncio.sleep(1)


async def run(settings: Settings) -> None:
    """Produce, handle and report until SIGTERM."""
    telemetry, stop = Telemetry(settings.instance), asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    async with asyncpg.create_pool(settings.database_url, min_size=1, max_size=4) as pool:
        telemetry.describe(await pool.fetchval("select version from agent.version"))
        queue = Queue(pool)
        calls = [lambda: produce(settings, queue), lambda: sample(settings, telemetry)]
        if settings.instance == 0:
            calls.append(lambda: watch_depth(pool))
        beside = [asyncio.create_task(lasting(call)) for call in calls]
        await worker(stop)
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)


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
