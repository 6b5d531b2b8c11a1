"""Measure what ingest pays for storing an event before it answers 200."""

import asyncio
import json
import re
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import psutil  # type: ignore[import-untyped]

from benchmarks import consumer, figures
from benchmarks.bench import Bench, at_rest
from benchmarks.programs.ingest_load import SECRET
from benchmarks.result import Bars, Result, Table, Verdict
from surelane_dev.processes import ChildProcess

STORING, FORGETTING = "surelane ingest, 200 after the commit", "the same service, verifying without storing"
MODULES = {FORGETTING: "benchmarks.programs.ingest_without_storing", STORING: "surelane_ingest"}
CONNECTIONS = 64
WARMING = CONNECTIONS * 10
"""Requests before the measured ones, which make connections and warm code and caches."""
PACE = 2_000
"""Requests per second of the paced load, far below the limit of both services."""
READY_WITHIN = 20.0
_BATCHES = re.compile(r"^messaging_client_operation_duration_seconds_count\b.* ([0-9.e+]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Round:
    """The figures of one service under load; times in seconds."""

    rate: float
    p50: float
    p99: float
    paced_p50: float
    paced_p99: float
    cpu: float
    """CPU seconds of the service per request."""

    batch: float
    """Events per commit."""


@dataclass(frozen=True)
class Service:
    """A running service."""

    port: int
    private: str
    pid: int

    def cpu(self) -> float:
        """CPU seconds so far."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    async def batches(self) -> float:
        """Return the number of commits so far, by the server's own count."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.private}/metrics") as response:
            return sum(float(number) for number in _BATCHES.findall(await response.text()))


async def measure(bench: Bench) -> Result:
    """Load both services in turn, each with a database of its own."""
    count = bench.size(30_000, 3_000)
    rounds: dict[str, list[Round]] = {name: [] for name in MODULES}
    for _ in range(bench.rounds):
        for name in MODULES:
            rounds[name].append(await load_once(bench, name, count))
            bench.say(f"{name}: {figures.rate(rounds[name][-1].rate)} requests/s")
    return _result(count, rounds)


async def load_once(bench: Bench, name: str, count: int, settings: Mapping[str, str] | None = None) -> Round:
    """Send ``count`` requests to a warm service."""
    async with (
        bench.database() as database,
        at_rest(database) as connection,
        running_service(name, bench.server.uri(database.name, "surelane_ingest"), settings or {}) as service,
    ):
        await load(service.port, WARMING)
        cpu, batches = service.cpu(), await service.batches()
        told = await load(service.port, count)
        cpu, batches = service.cpu() - cpu, await service.batches() - batches
        paced = await load(service.port, count // 3, PACE)
        stored = await connection.fetchval("select count(*) from agent.event")
    expected = sent(count) if name == STORING else 0
    if stored != expected:
        raise RuntimeError(f"{name}: stored {stored} of {expected}")
    latencies = (told["p50"], told["p99"], paced["p50"], paced["p99"])
    return Round(told["rate"], *latencies, cpu / count, count / batches if batches else 0.0)


def sent(count: int) -> int:
    """Return the number of all requests of a round with ``count`` measured ones."""
    return WARMING + count + count // 3


@asynccontextmanager
async def running_service(name: str, uri: str, settings: Mapping[str, str]) -> AsyncIterator[Service]:
    port, private = free_port(), free_port()
    env = {
        "DATABASE_URL": uri,
        "SLACK_SIGNING_SECRET": SECRET,
        "LOG_LEVEL": "warning",
        "SURELANE_HOST": "127.0.0.1",
        "SURELANE_PORT": str(port),
        "SURELANE_PRIVATE_PORT": str(private),
        **settings,
    }
    async with consumer.running(name, MODULES[name], env=env) as process:
        service = Service(port, f"http://127.0.0.1:{private}", process.child.process.pid)
        await _until_ready(service)
        yield service


def free_port() -> int:
    """Find a port of 127.0.0.1 that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


async def _until_ready(service: Service) -> None:
    async with asyncio.timeout(READY_WITHIN), aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(f"{service.private}/readyz") as response:
                    if response.ok:
                        return
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(0.05)


async def load(port: int, count: int, pace: int = 0) -> dict[str, Any]:
    """Send ``count`` requests from a process of its own, paced or as fast as they are answered.

    Returns:
        The figures of the load process.

    Raises:
        RuntimeError: some were not answered 200.
    """
    lines: list[str] = []
    arguments = (str(number) for number in (port, count, CONNECTIONS, pace))
    command = (sys.executable, "-m", "benchmarks.programs.ingest_load", *arguments)
    child = await ChildProcess.start("load", *command, on_line=lines.append)
    try:
        if await child.wait() != 0:
            raise RuntimeError("\n".join(lines))
    finally:
        child.kill()
    told: dict[str, Any] = json.loads(lines[-1])
    if told["statuses"] != {"200": count}:
        raise RuntimeError(f"answered {told['statuses']}")
    return told


def _result(count: int, rounds: dict[str, list[Round]]) -> Result:
    rates = {name: figures.median([each.rate for each in all_]) for name, all_ in rounds.items()}
    p99 = {name: figures.median([each.p99 for each in all_]) for name, all_ in rounds.items()}
    share, slower = rates[STORING] / rates[FORGETTING], p99[STORING] / p99[FORGETTING]
    return Result(
        title="Ingest, durable",
        how=f"""
            A load process sends {count:,} signed requests of 1.3 kB with distinct event ids over
            {CONNECTIONS} connections. Each connection sends a request when the one before is
            answered. One target is the ingest service. The other is the same service with a writer
            that stores nothing. Load, service and PostgreSQL share the cores, so the database's CPU
            time lowers the rate. The figures are medians of {len(rounds[STORING])} rounds, in turn.
            The targets apply to this load: it saturates both services, and requests wait for one
            another. The last two columns come from {count // 3:,} further requests at {PACE:,} per
            second, which saturate neither service. There p99 is that of an idle service; with
            storing it includes a commit to disk.
        """,
        table=Table(
            (
                *(
                    "service",
                    "requests/s",
                    "of the rounds",
                    "p50",
                    "p99",
                    "CPU per request",
                    "events per commit",
                ),
                *(f"p50 at {PACE:,}/s", f"p99 at {PACE:,}/s"),
            ),
            [_row(name, all_) for name, all_ in rounds.items()],
        ),
        verdicts=[
            Verdict("at least 0.7 of the requests/s without storing", figures.ratio(share), share >= 0.7),
            Verdict("p99 at most twice that without storing", f"{slower:.1f} times", slower <= 2),
        ],
        plots=[Bars("Ingest, durable", "requests/s", rates)],
    )


def _row(name: str, rounds: list[Round]) -> tuple[str, ...]:
    rates = [each.rate for each in rounds]
    return (
        name,
        figures.rate(figures.median(rates)),
        figures.spread(rates),
        figures.milliseconds(figures.median([each.p50 for each in rounds])),
        figures.milliseconds(figures.median([each.p99 for each in rounds])),
        figures.microseconds(figures.median([each.cpu for each in rounds])),
        f"{figures.median([each.batch for each in rounds]):.1f}",
        figures.milliseconds(figures.median([each.paced_p50 for each in rounds])),
        figures.milliseconds(figures.median([each.paced_p99 for each in rounds])),
    )
