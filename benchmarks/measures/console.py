"""Measure how long each screen of the operator's page takes behind a long history and a deep queue."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
import asyncpg
from aiohttp import web

from benchmarks import figures
from benchmarks.bench import Bench, Database, at_rest
from benchmarks.result import Bars, Result, Table, Verdict
from surelane.calls import Calls, Connection
from surelane_operator.console.access.guard import Guard
from surelane_operator.console.access.viewer import Viewer
from surelane_operator.console.console import Console
from surelane_operator.console.screen import Sources
from surelane_operator.operations import Operations
from surelane_operator.panels.examinations import Examinations
from surelane_service.probes import private_app, serving

REQUESTS = 20
LIVE = 100_000
LIMIT = 0.2
"""Seconds; the 95th percentile of every screen."""
STEP = 50_000
"""Events of history per statement."""

_KINDS = "(array['slack.app_mention', 'slack.message.im', 'agent-turn', 'dispatch', 'mail'])[1 + n % 5]"
_PAYLOAD = """jsonb_build_object('type', 'event_callback', 'team_id', 'T' || n % 50, 'event_id', 'Ev' || n
    , 'event', jsonb_build_object('type', 'app_mention', 'user', 'U' || n % 500, 'channel', 'C' || n % 100
    , 'text', repeat('word ', 50)))"""
# Every 500th event is a continuation, and the 40 after it are its children. One in a hundred failed.
_HISTORY = f"""
    insert into agent.event_hist (id, event_ts, attempts, vt, claimed, event, kind, item_key, group_key, head, lane
    , enqueued_at, enqueued_by, claimed_by, retrying, errors, outcome, finished_at, finished_by, continuation_id
    , waits_for)
    select n, t, 1, t, array[t], {_PAYLOAD}, {_KINDS}
    , 'Ev' || n, 'T1:C' || n % 100 || ':' || n / 7, true, n % 16
    , t, 'bench', 'worker-' || n % 10, false
    , case when n % 100 = 77 then '[{{"message": "no such order"}}]' else '[]' end::jsonb
    , case when n % 100 = 77 then 'failed' else 'completed' end, t + interval '1 second', 'worker-' || n % 10
    , case when n % 500 between 1 and 40 then n / 500 * 500 end, case when n % 500 = 0 then 0 end
    from generate_series($1::int8, $2::int8) as n
    cross join lateral (select now() - interval '90 days' * (1 - n / $3::float8)) as moment (t)
"""
_STEPS = """
    insert into agent.step (event_id, name, nth, sort, event_ts, result, attempt, started_at, finished_at)
    select n, 'look up', 1, 'step', now(), '"found"', 1, now(), now() from generate_series(1, $1::int8, 10) as n
"""
# Of a hundred events 83 are pending, 5 wait behind one thread, 10 are children, 2 are scheduled.
_LIVE = f"""
    insert into agent.event (id, event_ts, vt, event, kind, item_key, group_key, head, lane, continuation_id)
    select n, t, case when n % 100 > 97 then t + interval '1 day' else t end, {_PAYLOAD}, {_KINDS}, 'Ev' || n
    , case when n % 100 < 5 then 'T1:C1:crowd' end, n % 100 >= 5 or n = $1, n % 16
    , case when n % 100 between 50 and 59 then $1 + $2 + n / 5000 end
    from generate_series($1::int8, $1::int8 + $2 - 1) as n
    cross join lateral (select now() - interval '1 millisecond' * ($1 + $2 - n)) as moment (t)
"""
_JOINS = """
    insert into agent.event (id, event_ts, vt, event, kind, head, lane, waits_for)
    select distinct continuation_id, now(), timestamptz 'infinity', jsonb '{}', 'join', true, 0, 500
    from agent.event where continuation_id is not null
"""
_RUNNING = """
    update agent.event set attempts = 1, claimed = array[now()], claimed_by = 'worker-' || id % 10, heartbeat_at = now()
    , vt = now() + interval '1 hour' where id in (select id from agent.event where group_key is null limit 200)
"""
_QUESTIONS = """
    with asking as (
        update agent.event set vt = now() + interval '1 day'
        where id in (select id from agent.event where group_key is null and claimed_by is null limit 500) returning id
    ), asked as (
        insert into agent.step (event_id, name, nth, sort, event_ts, result, attempt, started_at, finished_at)
        select id, 'ask:1 asked', 1, 'step', now(), '{"text": "Shall I?", "choices": ["Yes", "No"], "by": null}', 1
        , now(), now()
        from asking
    )
    insert into agent.step (event_id, name, nth, sort, event_ts, attempt, started_at)
    select id, 'ask:1', 1, 'wait', now(), 1, now() from asking
"""


class _SignedIn:
    """Stands in for the sign-in, which is not measured."""

    def viewer(self, _: web.Request) -> Viewer:
        return Viewer("bench", "operator", "none")


async def measure(bench: Bench) -> Result:
    """Fill a database, serve the page, and request every screen in turn."""
    history = bench.history or bench.size(1_000_000, 20_000)
    live = bench.size(LIVE, 5_000)
    async with bench.database() as database:
        async with at_rest(database) as admin:
            await _fill(bench, admin, history, live)
        async with at_rest(database) as admin:
            screens = await _screens(admin, history)
        async with _served(database) as url, aiohttp.ClientSession() as session:
            times = {name: await _times(session, url + path) for name, path in screens.items()}
    return _result(times, history, live)


async def _fill(bench: Bench, admin: Connection, history: int, live: int) -> None:
    # Without the triggers: their speed is not measured here.
    await admin.execute("set session_replication_role = replica; set synchronous_commit = off; set jit = off")
    await admin.execute(
        f"insert into agent.kind (kind) select distinct {_KINDS} from generate_series(0, 4) as n"
        " union select 'join'"
    )
    for first in range(1, history + 1, STEP):
        await admin.execute(_HISTORY, first, min(first + STEP - 1, history), history)
    await admin.execute(_STEPS, history)
    await admin.execute(_LIVE, history + 1, live)
    await admin.execute(_JOINS)
    await admin.execute(_RUNNING)
    await admin.execute(_QUESTIONS)
    await admin.execute("select setval('agent.event_id_seq', $1)", 2 * (history + live))
    for number in range(10):
        await admin.execute(
            "select agent.announce_worker($1, (select array_agg(kind) from agent.kind), '0.2.0', interval '0', 3)",
            f"worker-{number}",
        )
    await admin.execute("reset session_replication_role")
    bench.say(f"filled with {history:,} events of history and {live:,} live ones")


async def _screens(admin: Connection, history: int) -> Mapping[str, str]:
    """Return what is measured of each screen."""
    joining = await admin.fetchval("select max(id) from agent.event where kind = 'join'")
    running = await admin.fetchval("select min(id) from agent.event where claimed_by is not null")
    ended = history // 2 // 500 * 500
    return {
        "overview": "/",
        "events": "/events",
        "events that failed": "/events?status=failed",
        "events of a kind and an error": "/events?status=failed&kind=mail&error=no+such",
        "events by text": "/events?text=nothing+has+this",
        "event, running": f"/events/{running}",
        "event, ended long ago": f"/events/{ended + 1}",
        "thread with 5,000 events": "/thread?key=T1%3AC1%3Acrowd",
        "kinds": "/kinds",
        "kind": "/kinds/mail",
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


@asynccontextmanager
async def _served(database: Database) -> AsyncIterator[str]:
    """Serve the page as ingest does, on two connections."""

    async def unready() -> str | None:
        return None

    async with asyncpg.create_pool(database.worker, min_size=2, max_size=2) as pool:
        examinations = Examinations(database.worker)
        console = Console(Sources(Operations(pool), Calls(pool), examination=examinations.latest))
        app = private_app(unready, console.routes(), middlewares=[Guard(None, _SignedIn()).middleware])
        app.on_shutdown.append(console.close)
        async with serving(app, 0, setting="none", host="127.0.0.1") as port:
            yield f"http://127.0.0.1:{port}/console"


async def _times(session: aiohttp.ClientSession, url: str) -> list[float]:
    """Return the seconds of each request. One before them makes the plans."""
    times = []
    for _ in range(REQUESTS + 1):
        began = time.perf_counter()
        async with session.get(url) as response:
            await response.read()
            assert response.status == 200, f"{url}: {response.status}"
        times.append(time.perf_counter() - began)
    return times[1:]


def _result(times: Mapping[str, list[float]], history: int, live: int) -> Result:
    slow = {name: figures.percentile(each, 0.95) for name, each in times.items()}
    worst = max(slow, key=lambda name: slow[name])
    rows = [
        (name, figures.milliseconds(figures.median(each)), figures.milliseconds(slow[name]))
        for name, each in times.items()
    ]
    return Result(
        title="The operator's page behind a long history",
        how=f"""
            A database has {history:,} events of history of the last 90 days and {live:,} live ones, 200 of
            which run on ten workers; 500 wait for people. Each screen is requested {REQUESTS} times in
            turn, over HTTP, whole, after one request that makes the plans. The page has two connections.
        """,
        table=Table(("screen", "p50", "p95"), rows),
        verdicts=[
            Verdict(
                f"every screen within {LIMIT * 1000:.0f} ms (p95); the slowest is: {worst}",
                figures.milliseconds(slow[worst]),
                slow[worst] <= LIMIT,
            )
        ],
        plots=[
            Bars(
                "Screens of the operator's page",
                "ms, p95",
                {name: each * 1000 for name, each in slow.items()},
            )
        ],
    )
