"""Drain our own queue with a given process, for several benchmarks."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from benchmarks import figures
from benchmarks.bench import Bench, Database, at_rest
from benchmarks.consumer import Consumer
from benchmarks.meter import usage
from benchmarks.result import Table
from surelane.calls import Connection

WITHIN = 300.0
CONCURRENCY = 10
SPAN = "select extract(epoch from max(finished_at) - min(claimed[1]))::float8, count(*) from agent.event_hist"

Fill = Callable[[Connection], Awaitable[None]]
Start = Callable[[Database], AbstractAsyncContextManager[Consumer]]


@dataclass(frozen=True)
class Drain:
    """The figures of one drain of a full queue."""

    rate: float
    """Events per second, from the first claim to the last completion by the database's clock."""

    cpu: float
    """CPU seconds of the handling process per event."""

    wal: float
    commits: float


async def drain(bench: Bench, count: int, fill: Fill, start: Start) -> Drain:
    """Fill a fresh database with ``count`` events, and let the process of ``start`` empty it.

    Raises:
        RuntimeError: an event is missing from history at the end.
    """
    async with bench.database() as database:
        async with at_rest(database) as connection:
            await fill(connection)
        async with at_rest(database) as connection:
            before = await usage(connection)
            async with start(database) as process:
                await process.handled(count, WITHIN)
            used = await usage(connection) - before
            return await measured(
                connection, SPAN, count, process.cpu_per_event(), used.wal_bytes, used.commits
            )


async def measured(
    connection: Connection, span: str, count: int, cpu: float, wal_bytes: int, commits: int
) -> Drain:
    """Read a drain from a database's history. ``span`` selects its seconds and its number of completed events."""
    seconds, completed = await connection.fetchrow(span) or (0.0, 0)
    if completed != count:
        raise RuntimeError(f"{completed} of {count} events are in history")
    return Drain(count / seconds, cpu, wal_bytes / count, commits / count)


def rates(rounds: Mapping[str, Sequence[Drain]]) -> dict[str, float]:
    """Return the median rate of each process."""
    return {name: figures.median([drain.rate for drain in drains]) for name, drains in rounds.items()}


def table(subject: str, rounds: Mapping[str, Sequence[Drain]]) -> Table:
    """Return a table with the medians of each process."""
    columns = (
        subject,
        "events/s",
        "lowest…highest",
        "CPU per event",
        "WAL bytes per event",
        "commits per event",
    )
    return Table(columns, [(name, *_figures(drains)) for name, drains in rounds.items()])


def _figures(drains: Sequence[Drain]) -> tuple[str, ...]:
    rate, cpu, wal, commits = (
        figures.median(values)
        for values in zip(*((each.rate, each.cpu, each.wal, each.commits) for each in drains), strict=True)
    )
    spread = figures.spread([drain.rate for drain in drains])
    return (figures.rate(rate), spread, figures.microseconds(cpu), f"{wal:,.0f}", f"{commits:.3f}")
