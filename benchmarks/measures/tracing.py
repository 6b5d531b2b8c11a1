"""Measure the cost of tracing every event, or one in a hundred, for the worker and ingest."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from benchmarks import consumer, figures, ours
from benchmarks.bench import Bench
from benchmarks.fill import fill
from benchmarks.measures import ingest
from benchmarks.result import Bars, Result, Table, Verdict
from surelane.calls import Connection
from surelane_dev.processes import ChildProcess

OFF, EVERY, SAMPLED = "no traces", "every event traced", "one event in a hundred traced"
ARGUMENT = "OTEL_TRACES_SAMPLER_ARG"
RATIO = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", ARGUMENT: "0.01"}
MODES: dict[str, Mapping[str, str] | None] = {OFF: None, EVERY: {}, SAMPLED: RATIO}
IDLE, BUSY, INGEST = "worker, handlers that do nothing", "worker, handlers of 10 ms, 500 events/s", "ingest"
SLOTS = 5
"""So that handlers of 10 ms take 500 events per second."""
TARGETS = {(IDLE, SAMPLED): 0.97, (BUSY, SAMPLED): 0.97, (INGEST, SAMPLED): 0.97, (BUSY, EVERY): 0.95}
"""Tracing every event at full speed has none: sampling pays for speed."""
STOP_WITHIN = 10.0

# Events as ingest stores them: one in $1 is sampled; without traces (0) the update writes the same rows again.
_TRACEPARENTS = """
    update agent.event set traceparent = '00-' || md5(id::text) || '-' || substr(md5('span' || id), 1, 16)
    || case when id % nullif($1, 0) = 0 then '-01' when $1 > 0 then '-00' end
"""


@dataclass(frozen=True)
class Run:
    """The figures of one load."""

    count: int
    rate: float
    cpu: float
    exported: int = 0
    """The number of bytes sent to the collector."""

    @property
    def bytes_per_event(self) -> float:
        return self.exported / self.count


Load = Callable[[Bench, Mapping[str, str]], Awaitable[Run]]


@dataclass
class Collector:
    """The process that receives traces."""

    port: int
    lines: list[str] = field(default_factory=list)

    @property
    def received(self) -> int:
        """The number of received bytes, known once it has ended."""
        return int(self.lines[-1])


async def measure(bench: Bench) -> Result:
    """Load each service in each mode once per round, in turn."""
    loads: dict[str, Load] = {
        IDLE: partial(_drain, "counting", 10, bench.size(40_000, 10_000)),
        BUSY: partial(_drain, "napping", SLOTS, bench.size(4_000, 1_000)),
        INGEST: partial(_ingest, bench.size(15_000, 2_000)),
    }
    rounds: dict[tuple[str, str], list[Run]] = {}
    for _ in range(bench.rounds):
        for load, run in loads.items():
            for mode, settings in MODES.items():
                done = await _exporting(run, bench, settings)
                rounds.setdefault((load, mode), []).append(done)
                bench.say(f"{load}, {mode}: {figures.rate(done.rate)} events/s")
    return _result(bench, rounds)


async def _exporting(load: Load, bench: Bench, settings: Mapping[str, str] | None) -> Run:
    """Run a load, with a collector beside it if the mode exports traces."""
    if settings is None:
        return await load(bench, {})
    async with _collector() as collector:
        endpoint = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://127.0.0.1:{collector.port}/v1/traces"}
        run = await load(bench, {**endpoint, **settings})
    return replace(run, exported=collector.received)


@asynccontextmanager
async def _collector() -> AsyncIterator[Collector]:
    collector = Collector(ingest.free_port())
    ready = asyncio.Event()

    def read(line: str) -> None:
        collector.lines.append(line)
        ready.set()

    command = (sys.executable, "-m", "benchmarks.programs.collector", str(collector.port))
    child = await ChildProcess.start("collector", *command, on_line=read)
    try:
        await asyncio.wait_for(ready.wait(), STOP_WITHIN)
        yield collector
        if await child.stop(signal.SIGTERM, STOP_WITHIN) != 0:
            raise RuntimeError("\n".join(collector.lines))
    finally:
        child.kill()
        await child.wait()


async def _drain(handlers: str, slots: int, count: int, bench: Bench, settings: Mapping[str, str]) -> Run:
    async def stored(connection: Connection) -> None:
        await fill(connection, count)
        one_in = (100 if ARGUMENT in settings else 1) if settings else 0
        await connection.execute(_TRACEPARENTS, one_in)

    done = await ours.drain(
        bench,
        count,
        stored,
        lambda database: consumer.worker(database.worker, handlers, concurrency=slots, **settings),
    )
    return Run(count, done.rate, done.cpu)


async def _ingest(count: int, bench: Bench, settings: Mapping[str, str]) -> Run:
    done = await ingest.load_once(bench, ingest.STORING, count, settings)
    return Run(ingest.sent(count), done.rate, done.cpu)


def _result(bench: Bench, rounds: dict[tuple[str, str], list[Run]]) -> Result:
    rates = {key: figures.median([run.rate for run in runs]) for key, runs in rounds.items()}
    rows = [
        _row(load, mode, runs, rates[load, mode] / rates[load, OFF]) for (load, mode), runs in rounds.items()
    ]
    columns = (
        "load",
        "events/s",
        "lowest…highest",
        "of the rate without",
        "CPU per event",
        "bytes exported per event",
    )
    return Result(
        title="Tracing",
        how=f"""
            Each load runs without traces, with a trace of every event, and with a trace of one
            event in a hundred (OTEL_TRACES_SAMPLER=parentbased_traceidratio). Spans are exported in
            batches over OTLP/HTTP with the SDK's default queue. Spans beyond the queue's size are
            dropped, as the bytes exported show. The collector is a process on the same cores that
            reads its input and discards it. Worker: it drains a queue of events that ingest stored
            in the same mode. Its handlers do nothing and have {ours.CONCURRENCY} slots, or take 10
            ms, less than a call of Slack's API, and have {SLOTS} slots: 500 events/s. Ingest: it gets signed
            requests over {ingest.CONNECTIONS} connections. The figures are medians of
            {bench.rounds} rounds, in turn.
        """,
        table=Table(columns, rows),
        verdicts=[
            Verdict(
                f"{load}, {mode}: at least {target} of the rate without",
                figures.ratio(share),
                share >= target,
            )
            for (load, mode), target in TARGETS.items()
            if (share := rates[load, mode] / rates[load, OFF])
        ],
        plots=[Bars("Rate with traces, of the rate without", "", _shares(rates))],
    )


def _shares(rates: Mapping[tuple[str, str], float]) -> dict[str, float]:
    return {f"{load}: {mode}": rate / rates[load, OFF] for (load, mode), rate in rates.items() if mode != OFF}


def _row(load: str, mode: str, runs: list[Run], share: float) -> tuple[str, ...]:
    rates, cpu, exported = (
        [getattr(run, name) for run in runs] for name in ("rate", "cpu", "bytes_per_event")
    )
    return (
        f"{load}: {mode}",
        figures.rate(figures.median(rates)),
        figures.spread(rates),
        figures.ratio(share),
        figures.microseconds(figures.median(cpu)),
        f"{figures.median(exported):,.0f}",
    )
