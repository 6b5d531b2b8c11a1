"""Measure whether 50 open pages grow, or ask more of the database, while they stay open beside traffic."""

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import aiohttp
import asyncpg
import psutil  # type: ignore[import-untyped]

from benchmarks import figures
from benchmarks.bench import Bench, Database, at_rest
from benchmarks.measures.console import SignedIn
from benchmarks.operated import operate
from benchmarks.result import Lines, Result, Table, Verdict
from surelane import Queue
from surelane.calls import Calls, Pool
from surelane_operator.changes import Changes
from surelane_operator.console.access.guard import RequestGuard
from surelane_operator.console.console import Console
from surelane_operator.console.live import Live
from surelane_operator.console.screen import Sources
from surelane_operator.doctor import Examinations
from surelane_service.engine import Engine
from surelane_service.probes import private_app, serving

PAGES = 50
MINUTES = 10
SAMPLES = 20
RATE = 50
"""Events per second beside the pages."""
GROWTH = 0.05
SCREENS = (
    *("", "events", "events?status=failed", "events?workspace=T1", "kinds", "kinds/mail"),
    *("workflows", "waiting", "workers", "actions"),
)


@dataclass
class Sample:
    """What was seen at a moment: totals since the start, except the memory and the topics."""

    seconds: float
    memory: int
    topics: int
    statements: int
    news: int


class _Open:
    """The open pages, and what they were sent."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.statements = self.news = 0
        self.quiet = 0.0
        """The longest time in seconds without news of a page."""

    def count(self, _: object) -> None:
        self.statements += 1

    async def follow(self, session: aiohttp.ClientSession, url: str) -> None:
        """Keep a page open as a browser does: open the next stream where one ends."""
        heard = time.monotonic()
        while True:
            async with session.get(url, headers={"Accept": "text/event-stream"}) as response:
                assert response.status == 200, f"{url}: {response.status}"
                while await response.content.readuntil(b"\n\n"):
                    self.news += 1
                    now = time.monotonic()
                    self.quiet, heard = max(self.quiet, now - heard), now

    def sample(self, began: float) -> Sample:
        memory = psutil.Process(os.getpid()).memory_info().rss
        return Sample(time.monotonic() - began, memory, self.live.topics, self.statements, self.news)


async def measure(bench: Bench) -> Result:
    """Fill a database, open the pages, and watch them beside traffic."""
    minutes = bench.minutes or bench.size(MINUTES, 1) * (0.2 if bench.quick else 1)
    async with bench.database() as database:
        async with at_rest(database) as admin:
            await operate(admin, bench.size(200_000, 5_000), bench.size(5_000, 500), bench.say)
        opened = _Open(Live(most_each=PAGES))
        async with (
            _served(database, opened) as url,
            asyncpg.create_pool(database.worker, min_size=1, max_size=2) as pool,
        ):
            limitless = aiohttp.TCPConnector(limit=0)
            timeout = aiohttp.ClientTimeout(total=None, sock_read=120)
            async with aiohttp.ClientSession(
                connector=limitless, timeout=timeout, read_bufsize=2**22
            ) as session:
                places = itertools.islice(itertools.cycle(SCREENS), PAGES)
                work = [_traffic(pool), *(opened.follow(session, f"{url}/{place}") for place in places)]
                samples = await _watched(work, opened, minutes * 60, bench)
    return _result(samples, opened.quiet, minutes)


async def _watched(work: list, opened: _Open, seconds: float, bench: Bench) -> list[Sample]:  # type: ignore[type-arg]
    """Run the work for a time, and take samples. A task of it that fails ends the measurement."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in work]
        began = time.monotonic()
        samples = []
        for nth in range(1, SAMPLES + 1):
            await asyncio.sleep(began + seconds * nth / SAMPLES - time.monotonic())
            samples.append(opened.sample(began))
            bench.say(f"{samples[-1]}")
        for task in tasks:
            task.cancel()
    return samples


async def _traffic(pool: Pool) -> None:
    """Store events, run them, and let one in ten fail."""
    queue, engine = Queue(pool), Engine(pool)
    calls = Calls(pool)
    for number in itertools.count():
        await asyncio.sleep(5 / RATE)
        if number % 200 == 0:
            await engine.announce_worker("worker-1", ["mail"], "1.0.0", timedelta(0), 3)
        for nth in range(5):
            await queue.enqueue("mail", {"team_id": f"T{nth}", "text": "hello"})
        claimed = await calls.fetch(
            "select id, claim from agent.claim_events(array['mail'], 5, null, interval '1 minute', 'worker-1')"
        )
        ids, claims = [row[0] for row in claimed], [row[1] for row in claimed]
        await calls.fetch("select agent.complete_events($1::int8[], $2::int4[])", ids, claims)


@asynccontextmanager
async def _served(database: Database, opened: _Open) -> AsyncIterator[str]:
    """Serve the page as ingest does, on two connections, and count its statements."""

    async def unready() -> str | None:
        return None

    async def counted(connection: Any) -> None:  # noqa: ANN401 - the proxy of a connection
        connection.add_query_logger(opened.count)

    async with asyncpg.create_pool(database.worker, min_size=2, max_size=2, setup=counted) as pool:
        examinations = Examinations(database.worker)
        sources = Sources(Changes(pool), examination=examinations.latest)
        console = Console(sources, opened.live)
        app = private_app(unready, console.routes(), middlewares=[RequestGuard(None, SignedIn()).middleware])
        app.on_shutdown.append(console.close)
        async with serving(app, 0, setting="none", host="127.0.0.1") as port:
            yield f"http://127.0.0.1:{port}/console"


def _result(samples: list[Sample], quiet: float, minutes: float) -> Result:
    half = len(samples) // 2
    growth = samples[-1].memory / samples[half].memory - 1
    busier = _rate(samples[half:]) / _rate(samples[: half + 1]) - 1
    topics = {sample.topics for sample in samples}
    rows = [
        (
            f"{sample.seconds / 60:.1f}",
            figures.mebibytes(sample.memory),
            str(sample.topics),
            f"{_rate([before, sample]):.1f}",
            f"{sample.news:,}",
        )
        for before, sample in itertools.pairwise(samples)
    ]
    return Result(
        title="Fifty open pages",
        how=f"""
            {PAGES} pages of {len(SCREENS)} screens stay open for {minutes:g} minutes, over HTTP. Beside
            them {RATE} events per second are stored, claimed and completed. One process serves the pages
            and reads them. The statements are those of the pages alone.
        """,
        table=Table(("minutes", "resident memory", "topics", "statements/s", "news so far"), rows),
        verdicts=[
            Verdict(
                f"memory: at most {GROWTH:.0%} more at the end than at half-time",
                f"{growth:+.1%}",
                growth <= GROWTH,
            ),
            Verdict(
                f"a topic per screen ({len(SCREENS)}), throughout",
                ", ".join(map(str, sorted(topics))),
                topics == {len(SCREENS)},
            ),
            Verdict("statements/s: at most 10% more in the second half", f"{busier:+.1%}", busier <= 0.1),
            Verdict("each page hears within 15 s", f"{quiet:.1f} s at most", quiet <= 15),
        ],
        plots=[
            Lines(
                "Memory beside fifty open pages",
                "minutes",
                "MiB",
                {"memory": [(sample.seconds / 60, sample.memory / 2**20) for sample in samples]},
            )
        ],
    )


def _rate(samples: list[Sample]) -> float:
    """Return the statements per second between the first and the last sample."""
    first, last = samples[0], samples[-1]
    return (last.statements - first.statements) / (last.seconds - first.seconds)
