"""Ingest: what it costs that an answer of 200 means stored."""

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
from dev.processes import Child

from benchmarks import consumer, figures
from benchmarks.bench import Bench, at_rest
from benchmarks.ingest_load import SECRET
from benchmarks.result import Bars, Result, Table, Verdict

STORING, FORGETTING = "surelane ingest, 200 after the commit", "the same service, verifying without storing"
MODULES = {FORGETTING: "benchmarks.ingest_without_storing", STORING: "surelane_ingest"}
CONNECTIONS = 64
WARMING = CONNECTIONS * 10
"""Requests before those that count: connections made, code and caches warm."""
READY_WITHIN = 20.0
_BATCHES = re.compile(r"^messaging_client_operation_duration_seconds_count\b.* ([0-9.e+]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Round:
    """One service under load; times in seconds."""

    rate: float
    p50: float
    p99: float
    cpu: float
    """CPU seconds of the service a request."""

    batch: float
    """Events a commit."""


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
        """Commits so far, by its own count."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.private}/metrics") as response:
            return sum(float(number) for number in _BATCHES.findall(await response.text()))


async def measure(bench: Bench) -> Result:
    """Loads both services in turn, each with a database of its own."""
    count = bench.size(30_000, 3_000)
    rounds: dict[str, list[Round]] = {name: [] for name in MODULES}
    for _ in range(bench.rounds):
        for name in MODULES:
            rounds[name].append(await load_once(bench, name, count))
            bench.say(f"{name}: {figures.rate(rounds[name][-1].rate)} requests/s")
    return _result(count, rounds)


async def load_once(bench: Bench, name: str, count: int, settings: Mapping[str, str] | None = None) -> Round:
    """Sends a service that is warm ``count`` requests."""
    async with (
        bench.database() as database,
        at_rest(database) as connection,
        _service(name, bench.server.uri(database.name, "surelane_ingest"), settings or {}) as service,
    ):
        await _load(service.port, WARMING)
        cpu, batches = service.cpu(), await service.batches()
        told = await _load(service.port, count)
        cpu, batches = service.cpu() - cpu, await service.batches() - batches
        stored = await connection.fetchval("select count(*) from agent.event")
    expected = count + WARMING if name == STORING else 0
    if told["statuses"] != {"200": count} or stored != expected:
        raise RuntimeError(f"{name}: answered {told['statuses']}, stored {stored} of {expected}")
    return Round(told["rate"], told["p50"], told["p99"], cpu / count, count / batches if batches else 0.0)


@asynccontextmanager
async def _service(name: str, uri: str, settings: Mapping[str, str]) -> AsyncIterator[Service]:
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
    """A port of 127.0.0.1 that was free a moment ago."""
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


async def _load(port: int, count: int) -> dict[str, Any]:
    """Sends ``count`` requests from a process of its own; returns what it measured."""
    lines: list[str] = []
    command = (sys.executable, "-m", "benchmarks.ingest_load", str(port), str(count), str(CONNECTIONS))
    child = await Child.start("load", *command, on_line=lines.append)
    try:
        if await child.wait() != 0:
            raise RuntimeError("\n".join(lines))
    finally:
        child.kill()
    told: dict[str, Any] = json.loads(lines[-1])
    return told


def _result(count: int, rounds: dict[str, list[Round]]) -> Result:
    rates = {name: figures.median([each.rate for each in all_]) for name, all_ in rounds.items()}
    p99 = {name: figures.median([each.p99 for each in all_]) for name, all_ in rounds.items()}
    rows = [
        (
            name,
            figures.rate(rates[name]),
            figures.spread([each.rate for each in all_]),
            figures.milliseconds(figures.median([each.p50 for each in all_])),
            figures.milliseconds(p99[name]),
            figures.microseconds(figures.median([each.cpu for each in all_])),
            f"{figures.median([each.batch for each in all_]):.1f}",
        )
        for name, all_ in rounds.items()
    ]
    share, slower = rates[STORING] / rates[FORGETTING], p99[STORING] / p99[FORGETTING]
    return Result(
        title="Ingest, durable",
        how=f"""
            {count:,} signed requests of 1.3 kB with distinct event ids, from a process of its own over {CONNECTIONS}
            connections, each request sent when the one before is answered: to the ingest service, and to the same
            service with a writer that stores nothing. Load, service and PostgreSQL share the cores, so what the
            database takes is missing from the rate. Median of {len(rounds[STORING])} rounds, in turn.
        """,
        table=Table(
            ("service", "requests/s", "of the rounds", "p50", "p99", "CPU a request", "events a commit"), rows
        ),
        verdicts=[
            Verdict("at least 0.7 of the requests/s without storing", figures.ratio(share), share >= 0.7),
            Verdict("p99 at most twice that without storing", f"{slower:.1f} times", slower <= 2),
        ],
        plots=[Bars("Ingest, durable", "requests/s", rates)],
    )
