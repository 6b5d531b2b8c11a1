"""Measure whether inserts, claims, settles and lists cost the same behind a short and a long history.

TimescaleDB keeps history in chunks of seven days. A statement that opens them all grows with their number.
"""

import json
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from benchmarks import figures
from benchmarks.bench import Bench, at_rest
from benchmarks.result import Bars, Result, Table, Verdict
from benchmarks.server import SETTINGS, Server, connected, migrated_template
from surelane.calls import Connection
from surelane_dev.accounts import create_roles

IMAGE = "timescale/timescaledb:2.19.3-pg17"
A_CHUNK = 38_462
"""Events per chunk: 260 chunks have 10 million."""

BATCH = 100
LISTS_EVERY = 4
LIMIT = 1.3
KIND = "slack.app_mention"

# Evenly from the start of the first chunk until now; one in a hundred failed.
_FILL = """
    insert into agent.event_hist (id, event_ts, attempts, vt, claimed, event, kind, item_key, head, lane, enqueued_at
    , enqueued_by, claimed_by, retrying, errors, outcome, finished_at)
    select n, t, 1, t, array[t], '{"text": "hello"}', 'kind' || n % 5, 'Ev' || n, true, n % 16, t, 'bench'
    , 'bench', false, '[]', case when n % 100 = 0 then 'failed' else 'completed' end, t + interval '1 second'
    from generate_series($1::int8, $2::int8) as n
    cross join lateral (select $3::timestamptz + (now() - $3::timestamptz) * (n / $4::float8)) as moment (t)
"""
_ACTIONS = {
    "insert one event": "select agent.insert_event($1)",
    f"insert a batch of {BATCH}": "select * from agent.insert_events($1)",
    "claim one event": f"select * from agent.claim_events('{{{KIND}}}', 1)",
    "complete it": "select * from agent.complete_events($1, $2, null)",
    "the newest 20 that failed": "select * from agent.list_jobs('{failed}')",
    "the newest 20 that ended": "select * from agent.list_jobs('{completed,failed,expired,cancelled}')",
}
ONE, MANY, CLAIM, COMPLETE, *LISTS = _ACTIONS


@dataclass
class History:
    """A queue whose history has some number of chunks, and how long each action took there."""

    connection: Connection
    times: dict[str, list[float]] = field(default_factory=dict)

    async def round(self, *, lists: bool) -> None:
        """Do every action once. The queue is empty before and after."""
        await self._timed(ONE, self.connection.fetch(_ACTIONS[ONE], _event()))
        claimed = await self._timed(CLAIM, self.connection.fetch(_ACTIONS[CLAIM]))
        pairs = [row["id"] for row in claimed], [row["claim"] for row in claimed]
        await self._timed(COMPLETE, self.connection.fetch(_ACTIONS[COMPLETE], *pairs))
        if lists:
            await self._timed(MANY, self.connection.fetch(_ACTIONS[MANY], [_event() for _ in range(BATCH)]))
            await self.connection.execute("select agent.delete_event(id) from agent.event")
            for name in LISTS:
                rows = await self._timed(name, self.connection.fetch(_ACTIONS[name]))
                assert len(rows) == 20, f"{name}: {len(rows)}"

    async def _timed(self, name: str, call: Awaitable[list[Any]]) -> list[Any]:
        began = time.perf_counter()
        answer = await call
        self.times.setdefault(name, []).append(time.perf_counter() - began)
        return answer

    def p50(self, name: str) -> float:
        """The median of an action, in seconds."""
        return figures.median(self.times[name])


async def measure(bench: Bench) -> Result:
    """Do every action in turn behind histories of several lengths."""
    chunks = (1, 53, 260) if not bench.quick else (1, 3, 6)
    rounds = bench.size(400, 12)
    async with AsyncExitStack() as stack:
        there, version = await stack.enter_async_context(on_timescaledb(bench))
        histories = {count: await _history(there, stack, count) for count in chunks}
        for number in range(-rounds // 10, rounds):
            if number == 0:  # before, plans and caches were made
                for history in histories.values():
                    history.times.clear()
            for history in histories.values():
                await history.round(lists=number % LISTS_EVERY == 0)
    return _result(histories, rounds, version)


@asynccontextmanager
async def on_timescaledb(bench: Bench) -> AsyncIterator[tuple[Bench, str]]:
    """Yield the same run on a server with TimescaleDB, a container's where the run's has none, and its versions."""
    async with AsyncExitStack() as stack:
        server = bench.server
        if not await _versions(server):
            server = await stack.enter_async_context(_container())
        template = await stack.enter_async_context(migrated_template(server))
        yield replace(bench, server=server, template=template), await _versions(server)


@asynccontextmanager
async def _container() -> AsyncIterator[Server]:
    # Its helper's image may be out of reach; we remove our container.
    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
    from testcontainers.community.postgres import PostgresContainer  # noqa: PLC0415 - reads that when imported

    settings = {**SETTINGS, "max_locks_per_transaction": "256", "timescaledb.max_background_workers": "0"}
    command = ["postgres", *(part for name, value in settings.items() for part in ("-c", f"{name}={value}"))]
    container = PostgresContainer(
        IMAGE, username="postgres", password=secrets.token_hex(8), dbname="postgres", driver=None
    )
    with container.with_command(command) as running:
        server = Server(running.get_connection_url())
        async with connected(server.admin) as connection:
            await create_roles(connection)
        yield server


async def _versions(server: Server) -> str:
    """Of TimescaleDB and its server; empty where it cannot be had."""
    async with connected(server.admin) as connection:
        extension = await connection.fetchval(
            "select default_version from pg_available_extensions where name = 'timescaledb'"
        )
        return (
            f"TimescaleDB {extension} on PostgreSQL {await connection.fetchval('show server_version')}"
            if extension
            else ""
        )


async def _history(bench: Bench, stack: AsyncExitStack, chunks: int) -> History:
    database = await stack.enter_async_context(bench.database())
    events = chunks * bench.size(A_CHUNK, 3_000)
    async with connected(database.admin) as admin:
        await admin.execute("set synchronous_commit = off; set jit = off")
        await admin.execute("insert into agent.kind select 'kind' || n from generate_series(0, 4) as n")
        begin = await admin.fetchval(
            "select date_bin('7 days', now(), 'epoch') - interval '7 days' * $1::int", chunks - 1
        )
        for first in range(1, events + 1, A_CHUNK):
            await admin.execute(_FILL, first, min(first + A_CHUNK - 1, events), begin, events)
        await admin.execute("select setval('agent.event_id_seq', $1)", events)
        made = await admin.fetchval("select count(*) from timescaledb_information.chunks")
        assert made == chunks, f"{made} chunks instead of {chunks}"
    bench.say(f"filled {chunks} chunks with {events:,} events")
    return History(await stack.enter_async_context(at_rest(database)))


def _event() -> str:
    """An event of Slack's that has just happened."""
    inner = {"type": "app_mention", "user": "U1", "text": "hello", "event_ts": f"{time.time():.6f}"}
    envelope = {
        "type": "event_callback",
        "team_id": "T1",
        "event_id": f"Ev{secrets.token_hex(8)}",
        "event": inner,
    }
    return json.dumps(envelope)


def _result(histories: dict[int, History], rounds: int, version: str) -> Result:
    shortest, longest = min(histories), max(histories)
    growth = {name: histories[longest].p50(name) / histories[shortest].p50(name) for name in _ACTIONS}
    rows = [
        (
            name,
            *(f"{history.p50(name) * 1000:.2f} ms" for history in histories.values()),
            figures.ratio(growth[name]),
        )
        for name in _ACTIONS
    ]
    verdict = partial(_verdict, growth, longest)
    return Result(
        title="Cost by the length of history",
        how=f"""
            One connection inserts an event, claims it and completes it, {rounds} times; every
            {LISTS_EVERY}th time it also inserts a batch of {BATCH} and reads two pages of what ended.
            It does so in turn in databases whose history has {_listed(histories)} chunks of a week, with
            {A_CHUNK:,} small events each. The figures are medians. {version}, with the settings below.
        """,
        table=Table(
            ("", *(f"{count} chunk{'s' * (count > 1)}" for count in histories), f"{longest} : {shortest}"),
            rows,
        ),
        verdicts=[
            verdict("an insert", (ONE, MANY)),
            verdict("a claim, a completion", (CLAIM, COMPLETE)),
            verdict("a page of what ended", LISTS),
        ],
        plots=[Bars("Cost by the length of history", f"{longest} chunks : {shortest}", growth)],
    )


def _listed(histories: dict[int, History]) -> str:
    *first, last = map(str, histories)
    return f"{', '.join(first)} and {last}"


def _verdict(
    growth: dict[str, float], longest: int, what: str, names: tuple[str, ...] | list[str]
) -> Verdict:
    worst = max(growth[name] for name in names)
    return Verdict(
        f"{what} behind {longest} chunks: at most {LIMIT} times that behind one",
        figures.ratio(worst),
        worst <= LIMIT,
    )
