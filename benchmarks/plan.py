"""Plan a deployment from measured costs, or check the plan against a run: ``python -m benchmarks.plan --help``.

Each figure of :data:`COSTS` comes from ``--check`` itself, which runs the real services on a real PostgreSQL and counts
CPU time and bytes. They do not depend on what else the machine does, as rates would. Handlers and Slack's answers are
not in them: what your handlers compute comes on top.
"""

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

import asyncpg
import psutil  # type: ignore[import-untyped]

from benchmarks import consumer
from benchmarks.bench import Bench, at_rest
from benchmarks.measures import ingest
from benchmarks.server import migrated_template, running_server

DAY, MONTH = 86_400, 30 * 86_400
BUSY = 0.7
"""The share of a core that may be busy at the peak."""
HEADROOM = 1.5
"""How much more than the peak a shard carries, so that it works off what an outage left."""
CONNECTIONS = {"ingest": 11, "worker": 11}
"""What a process opens at most (docs/scaling.md)."""
OTHERS = 19
"""Connections of the operator's service, a migration, administrators and monitoring."""
CHECKED = (20, 200)
"""Events per second of the runs that check the plan. CPU in :data:`COSTS` comes from 5 and 100, bytes from these."""


@dataclass(frozen=True)
class Cost:
    """What a part of the system uses, in CPU seconds or bytes."""

    base: float
    """Per second, once any events come: single ones share less than many."""

    event: float
    """Per event, from Slack's request to history."""

    process: float = 0.0
    """Per second and process, without events."""

    def at(self, rate: float, processes: int = 1) -> float:
        """Return the use per second at a rate of events."""
        return self.process * processes + self.base + self.event * rate


COSTS = {
    "ingest": Cost(0.002, 0.00136, 0.0004),
    "worker": Cost(0.01, 0.00155, 0.004),
    "PostgreSQL": Cost(0.012, 0.0037, 0.002),
    "WAL": Cost(5_000, 5_450, 3_600),
    "storage": Cost(0, 1_610),
}
"""Measured on the machine of docs/performance/plan.md, with Slack's mentions of 1.3 kB."""


@dataclass(frozen=True)
class Load:
    """What a team expects."""

    workspaces: int
    events_per_minute: float
    """Of a workspace, on average over the month."""

    peak: float = 4.0
    """The busiest minute, as a multiple of the average."""

    handler_seconds: float = 5.0
    concurrency: int = 10
    retention_days: int = 90
    shard_rate: float = 5_000.0
    """Events per second that one primary carries."""

    @property
    def average(self) -> float:
        """Events per second."""
        return self.workspaces * self.events_per_minute / 60


@dataclass(frozen=True)
class Plan:
    """What the load needs: processes, cores at the peak, bytes."""

    ingests: int
    workers: int
    cores: Mapping[str, float]
    connections: int
    wal_per_second: float
    storage: float
    shards: int
    month: tuple[float, float]
    """CPU seconds and bytes of storage that a month adds."""


def plan(load: Load, costs: Mapping[str, Cost] = COSTS) -> Plan:
    """Compute what a load needs."""
    peak = load.average * load.peak
    ingests = max(2, ceil(peak * costs["ingest"].event / BUSY))
    by_slots = ceil(peak * load.handler_seconds / load.concurrency)
    workers = 1 + max(1, by_slots, ceil(peak * costs["worker"].event / BUSY))
    processes = {"ingest": ingests, "worker": workers, "PostgreSQL": 1}
    return Plan(
        ingests,
        workers,
        {part: costs[part].at(peak, count) for part, count in processes.items()},
        sum(CONNECTIONS.get(part, 0) * count for part, count in processes.items()) + OTHERS,
        costs["WAL"].at(peak),
        costs["storage"].event * load.average * load.retention_days * DAY,
        max(1, ceil(peak * HEADROOM / load.shard_rate)),
        (
            MONTH * sum(costs[part].at(load.average, count) for part, count in processes.items()),
            MONTH * costs["storage"].event * load.average,
        ),
    )


def most_workspaces(load: Load, cores: float) -> int:
    """Return how many workspaces so many cores carry at their peak, all parts together."""
    low, high = 0, 1
    while _needed(load, high) <= cores * BUSY:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _needed(load, middle) <= cores * BUSY else (low, middle)
    return low


def _needed(load: Load, workspaces: int) -> float:
    return sum(plan(replace(load, workspaces=workspaces)).cores.values())


def lines(load: Load, found: Plan) -> list[tuple[str, str]]:
    """Return the plan for people."""
    cpu, stored = found.month
    return [
        ("events", f"{load.average:,.1f}/s on average, {load.average * load.peak:,.1f}/s at the peak"),
        ("ingest", f"{found.ingests} processes, {found.cores['ingest']:.2f} cores at the peak"),
        (
            "worker",
            f"{found.workers} processes, {found.cores['worker']:.2f} cores at the peak, without handlers",
        ),
        ("PostgreSQL", f"{found.cores['PostgreSQL']:.2f} cores at the peak"),
        ("shards", f"{found.shards}, each of at most {load.shard_rate:,.0f} events/s"),
        ("max_connections", f"at least {found.connections}"),
        ("WAL", f"{found.wal_per_second / 1e6:,.2f} MB/s at the peak"),
        ("history", f"{found.storage / 1e9:,.1f} GB for {load.retention_days} days"),
        ("a month", f"{cpu / 3600:,.1f} core-hours and {stored / 1e9:,.1f} GB more"),
    ]


def money(load: Load, core_hour: float, gigabyte: float) -> str:
    """Return what a million events cost: the services' time, and their place in history while it is kept."""
    seconds = sum(COSTS[part].event for part in ("ingest", "worker", "PostgreSQL")) * 1e6
    months = load.retention_days / 30
    stored = COSTS["storage"].event * 1e6 / 1e9
    price = seconds / 3600 * core_hour + stored * months * gigabyte
    return f"{price:,.2f} by your prices, beside idle processes and handlers"


@dataclass(frozen=True)
class Reading:
    """Counters at a moment: CPU seconds of the parts, and bytes."""

    used: Mapping[str, float]

    def __sub__(self, earlier: "Reading") -> dict[str, float]:
        return {part: value - earlier.used[part] for part, value in self.used.items()}


async def measured(bench: Bench, rate: int, seconds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Run one ingest and one worker at a rate. Return what each part used idle, and with events, per second.

    Raises:
        RuntimeError: an event did not end.
    """
    async with bench.database() as database, at_rest(database) as connection:
        uri = bench.server.uri(database.name, "surelane_ingest")
        async with (
            ingest.running_service(ingest.STORING, uri, {}) as service,
            consumer.worker(database.worker, "answering") as worker,
        ):
            await ingest.load(service.port, rate * 5, rate)  # connections are made, code is warm
            pids = {"ingest": service.pid, "worker": worker.child.process.pid}
            first = await _reading(connection, pids)
            await asyncio.sleep(seconds)
            idle = await _reading(connection, pids) - first
            first = await _reading(connection, pids)
            await ingest.load(service.port, rate * seconds, rate)
            async with asyncio.timeout(60):
                while await connection.fetchval("select count(*) from agent.event"):  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            busy = await _reading(connection, pids) - first
        ended = await connection.fetchval("select count(*) from agent.event_hist where outcome = 'completed'")
        if ended != rate * (seconds + 5):
            raise RuntimeError(f"{ended} of {rate * (seconds + 5)} events completed")
    return tuple({part: value / seconds for part, value in used.items()} for used in (idle, busy))  # type: ignore[return-value]


async def _reading(connection: asyncpg.Connection, pids: Mapping[str, int]) -> Reading:
    server = psutil.Process(await connection.fetchval("select pg_backend_pid()")).parent()
    used = {part: _cpu(psutil.Process(pid)) for part, pid in pids.items()}
    used["PostgreSQL"] = _cpu(server) + sum(map(_cpu, server.children(recursive=True)))
    used["WAL"] = float(await connection.fetchval("select pg_current_wal_insert_lsn() - '0/0'"))
    used["storage"] = float(
        await connection.fetchval(
            "select coalesce(sum(pg_total_relation_size(inhrelid)), 0) + pg_total_relation_size('agent.event_hist')"
            " from pg_inherits where inhparent = 'agent.event_hist'::regclass"
        )
    )
    return Reading(used)


def _cpu(process: psutil.Process) -> float:
    """CPU seconds of a process, and of its children that ended."""
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


async def check(rates: Sequence[int], seconds: int) -> None:
    """Measure at two rates, print predicted and measured use, and the costs that the two runs show."""
    async with running_server() as server, migrated_template(server) as template:
        bench = Bench(server, template, quick=False, rounds=1)
        runs = {rate: await measured(bench, rate, seconds) for rate in rates}
    print(f"{'':12}{'events/s':>10}{'predicted':>18}{'measured':>18}{'ratio':>8}")
    for part, cost in COSTS.items():
        for rate, (_, busy) in runs.items():
            predicted = cost.at(rate)
            print(f"{part:12}{rate:>10}{predicted:>18,.4f}{busy[part]:>18,.4f}{busy[part] / predicted:>8.2f}")
    low, high = rates
    for part in COSTS:
        event = (runs[high][1][part] - runs[low][1][part]) / (high - low)
        base = runs[low][1][part] - event * low
        alone = (runs[low][0][part] + runs[high][0][part]) / 2
        print(f"{part}: {base:.6g} per second ({alone:.6g} without events) and {event:.6g} per event")


def main(given: Sequence[str] | None = None) -> int:
    """Read the command line, and print a plan."""
    arguments = _parser().parse_args(given)
    if arguments.check:
        asyncio.run(check(sorted(arguments.rates), arguments.seconds))
        return 0
    if arguments.workspaces is None and arguments.cores is None:
        print("say --workspaces, --cores or --check; --help explains them", file=sys.stderr)
        return 2
    load = Load(
        arguments.workspaces or 1,
        arguments.events_per_minute,
        arguments.peak,
        arguments.handler_seconds,
        arguments.concurrency,
        arguments.retention_days,
        arguments.shard_rate,
    )
    if arguments.cores is not None:
        count = most_workspaces(load, arguments.cores)
        print(f"{arguments.cores:g} cores carry {count:,} workspaces, {BUSY:.0%} busy at the peak")
    if arguments.workspaces is not None:
        for name, value in lines(load, plan(load)):
            print(f"{name:16}{value}")
    if arguments.price_core_hour is not None and arguments.price_gigabyte is not None:
        print(f"a million events {money(load, arguments.price_core_hour, arguments.price_gigabyte)}")
    return 0


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.plan", description="Plan processes, cores, connections, WAL and storage."
    )
    default = Load(1, 1)
    options = (
        ("--workspaces", _count, None, "workspaces that have the app"),
        ("--events-per-minute", _positive, 1.0, "events of a workspace, on average over the month (1)"),
        ("--peak", _positive, default.peak, "the busiest minute, as a multiple of the average (4)"),
        ("--handler-seconds", _positive, default.handler_seconds, "how long a handler takes (5)"),
        ("--concurrency", _count, default.concurrency, "SURELANE_CONCURRENCY (10)"),
        ("--retention-days", _count, default.retention_days, "how long history is kept (90)"),
        ("--shard-rate", _positive, default.shard_rate, "events per second that a primary carries (5000)"),
        ("--cores", _positive, None, "say how many workspaces so many cores carry, all parts together"),
        ("--price-core-hour", _positive, None, "your price of a core for an hour"),
        ("--price-gigabyte", _positive, None, "your price of a gigabyte for a month"),
        ("--seconds", _count, 60, "how long each run of --check takes (60)"),
    )
    for name, kind, value, text in options:
        parser.add_argument(name, type=kind, default=value, help=text, metavar="N")
    parser.add_argument(
        "--rates",
        type=_count,
        nargs=2,
        default=CHECKED,
        metavar="N",
        help="events per second of --check (20 200)",
    )
    parser.add_argument(
        "--check", action="store_true", help="run the services at two rates; compare, and show the costs"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
