"""Measure how long each screen of the operator's page takes behind a long history and a deep queue."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlencode

import aiohttp
import asyncpg
import psutil  # type: ignore[import-untyped]
from aiohttp import web

from benchmarks import figures
from benchmarks.bench import Bench, Database, at_rest
from benchmarks.measures.history import on_timescaledb
from benchmarks.operated import operate
from benchmarks.result import Bars, Result, Table, Verdict
from surelane.calls import Connection
from surelane_operator.changes import Changes
from surelane_operator.console.access.guard import RequestGuard
from surelane_operator.console.console import Console
from surelane_operator.console.screen import Sources
from surelane_operator.doctor import Examinations
from surelane_operator.reads.filters import STATUSES, cursor_after
from surelane_operator.roles import Viewer
from surelane_service.probes import private_app, serving

REQUESTS = 20
LIVE = 100_000
LIMIT = 0.2
"""Seconds; the 95th percentile of every screen."""


_BACKENDS = (
    "select pid from pg_stat_activity where datname = current_database() and usename = 'surelane_operator'"
)
_SCANNED = """
    select relname from pg_stat_user_tables where seq_scan > 0
    and (relname in ('event', 'event_hist', 'step') or relname like '_hyper_%_chunk')
"""


@dataclass(frozen=True)
class Times:
    """The seconds of each request to a screen, and the server's CPU seconds per request."""

    seconds: list[float]
    processor: float


class SignedIn:
    """Stands in for the sign-in, which is not measured."""

    async def viewer(self, _: web.Request) -> Viewer:
        return Viewer("bench", "operator", "none")


async def measure(bench: Bench) -> Result:
    """Fill a database, serve the page, and request every screen in turn."""
    history = bench.history or bench.size(1_000_000, 20_000)
    live = bench.size(LIVE, 5_000)
    span = "90 days" if bench.weeks is None else f"{bench.weeks} weeks, each in a chunk of its own"
    async with AsyncExitStack() as stack:
        if bench.weeks is not None:
            bench, version = await stack.enter_async_context(on_timescaledb(bench))
            span += f" ({version})"
        database = await stack.enter_async_context(bench.database())
        async with at_rest(database) as admin:
            await operate(admin, history, live, bench.say, 7 * bench.weeks if bench.weeks else 90)
        async with at_rest(database) as admin:
            screens = await screens_of(admin, history)
            await admin.execute("select pg_stat_reset()")
        async with at_rest(database) as admin:
            times = await times_of(database, admin, screens)
            scanned = await _scans(admin)
    return result_of(times, scanned, history, live, span)


async def times_of(database: Database, admin: Connection, screens: Mapping[str, str]) -> dict[str, Times]:
    """Request each screen in turn."""
    async with _served(database) as url, aiohttp.ClientSession() as session:
        await _seconds(session, url)
        pids = [row[0] for row in await admin.fetch(_BACKENDS)]
        return {name: await _times(session, url + path, pids) for name, path in screens.items()}


async def _scans(admin: Connection) -> list[str]:
    """Return the large tables, or parts of history, that were scanned since the server's statistics began."""
    await asyncio.sleep(2)  # a backend reports its statistics within a second
    return [row[0] for row in await admin.fetch(_SCANNED)]


async def screens_of(admin: Connection, history: int) -> Mapping[str, str]:
    """Return what is measured of each screen."""
    joining = await admin.fetchval("select max(id) from agent.event where kind = 'join'")
    running = await admin.fetchval("select min(id) from agent.event where claimed_by is not null")
    ended = history // 2 // 500 * 500
    thread = await admin.fetchval("select group_key from agent.event_hist where id = $1", ended)
    moment = await admin.fetchval("select finished_at from agent.event_hist where id = $1", ended)
    deep = cursor_after({"id": ended, "finished_at": moment})
    screens = {
        "overview": "/",
        "overview, the last day": "/?span=day",
        "event, running": f"/events/{running}",
        "event, waiting in a thread": f"/events/{history + 104}",
        "event, ended long ago": f"/events/{ended + 1}",
        "thread with 5,000 events": "/thread?key=T1%3AC1%3Acrowd",
        "thread, ended long ago": f"/thread?{urlencode({'key': thread})}",
        "found by key": f"/find?q=Ev{ended + 1}",
        "found by a message's link": "/find?q=https://acme.slack.com/archives/C1x1/p1767225600000100",
        "kinds": "/kinds",
        "kind": "/kinds/mail",
        "kind, the last day": "/kinds/mail?span=day",
        "usage of models": "/usage",
        "workflows": "/workflows",
        "workflow, live": f"/workflows/{joining}",
        "workflow, ended long ago": f"/workflows/{ended}",
        "waiting for people": "/waiting",
        "schedules": "/schedules",
        "workers": "/workers",
        "worker": "/workers/worker-1",
        "doctor": "/doctor",
        "actions": "/actions",
    }
    filters: dict[str, dict[str, str]] = {
        "events": {},
        **{f"events, {state}": {"status": state} for state in STATUSES},
        "events, failed or expired": {"status": "failed,expired"},
        "events of a kind": {"kind": "mail"},
        "events of a rare kind, expired": {"kind": "report", "status": "expired"},
        "events of a key": {"key": f"Ev{ended + 1}"},
        "events of a thread": {"key": thread},
        "events of a key that is unknown": {"key": "none"},
        "events of a month": {"since": "2026-09-01", "until": "2026-10-01"},
        "events of a workspace": {"workspace": "T1"},
        "events of a workspace that is unknown": {"workspace": "T0NONE"},
        "events of a channel": {"channel": "C1x1"},
        "events of a user": {"user": "U1x1"},
        "events of an error": {"error": "overloaded"},
        "events that failed with an error": {"status": "failed", "error": "no such"},
        "events by text of keys": {"text": "nothing has this"},
        "ended events of a workspace that is unknown": {"status": "completed", "workspace": "T0NONE"},
        "events, a deep page": {"after": deep},
        "events of a kind, a deep page": {"kind": "mail", "status": "failed", "after": deep},
        "events of a channel, a deep page": {"channel": "C1x1", "after": deep},
    }
    return screens | {name: f"/events?{urlencode(fields)}" for name, fields in filters.items()}


@asynccontextmanager
async def _served(database: Database) -> AsyncIterator[str]:
    """Serve the page as ingest does, on two connections."""

    async def unready() -> str | None:
        return None

    async with asyncpg.create_pool(database.operator, min_size=2, max_size=2) as pool:
        examinations = Examinations(database.operator)
        console = Console(Sources(Changes(pool), examination=examinations.latest))
        app = private_app(unready, console.routes(), middlewares=[RequestGuard(None, SignedIn()).middleware])
        app.on_shutdown.append(console.close)
        async with serving(app, 0, setting="none", host="127.0.0.1") as port:
            yield f"http://127.0.0.1:{port}/console"


async def _times(session: aiohttp.ClientSession, url: str, pids: Sequence[int]) -> Times:
    """Request a screen some times. One request before them makes the plans."""
    await _seconds(session, url)
    before = _processor(pids)
    times = [await _seconds(session, url) for _ in range(REQUESTS)]
    return Times(times, (_processor(pids) - before) / REQUESTS)


async def _seconds(session: aiohttp.ClientSession, url: str) -> float:
    began = time.perf_counter()
    async with session.get(url) as response:
        await response.read()
        assert response.status == 200, f"{url}: {response.status}"
    return time.perf_counter() - began


def _processor(pids: Sequence[int]) -> float:
    """Return the seconds that the server's processes have computed; 0 where the server is not on this machine."""
    try:
        spent = [psutil.Process(pid).cpu_times() for pid in pids]
    except psutil.NoSuchProcess:
        return 0.0
    return float(sum(each.user + each.system for each in spent))


def result_of(
    times: Mapping[str, Times], scanned: Sequence[str], history: int, live: int, span: str
) -> Result:
    """Write the result."""
    slow = {name: figures.percentile(each.seconds, 0.95) for name, each in times.items()}
    worst = max(slow, key=lambda name: slow[name])
    rows = [
        (
            name,
            figures.milliseconds(figures.median(each.seconds)),
            figures.milliseconds(slow[name]),
            figures.milliseconds(each.processor),
        )
        for name, each in times.items()
    ]
    return Result(
        title="The operator's page behind a long history",
        how=f"""
            A database has {history:,} events of history of the last {span}, and {live:,} live ones, 200 of
            which run on ten workers; 500 wait for people. Each screen is requested {REQUESTS} times in
            turn, over HTTP, whole, after one request that makes the plans. The page has two connections.
        """,
        table=Table(("screen", "p50", "p95", "the server's processor"), rows),
        verdicts=[
            Verdict(
                f"every screen within {LIMIT * 1000:.0f} ms (p95); the slowest is: {worst}",
                figures.milliseconds(slow[worst]),
                slow[worst] <= LIMIT,
            ),
            Verdict("no sequential scan of a large table", ", ".join(scanned) or "none", not scanned),
        ],
        plots=[
            Bars(
                "Screens of the operator's page",
                "ms, p95",
                {name: each * 1000 for name, each in slow.items()},
            )
        ],
    )
