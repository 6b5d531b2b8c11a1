"""Check the server: notifications, clocks, dead rows, indexes."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg

from surelane.calls import Connection, translating
from surelane_operator.doctor.finding import Finding, Level, judged, ok, span

CHANNEL = "surelane_doctor"
PATIENCE = 3.0
"""Seconds to wait for a notification."""
SMALL_INDEX = 64 * 1024 * 1024
"""Bytes; smaller indexes are not judged."""
BLOATED = 2000
"""Bytes of index per row of the table; a healthy index has about a hundred."""

_TABLES = """
select t.relname, n_live_tup as live, n_dead_tup as dead, greatest(last_vacuum, last_autovacuum) as vacuumed
, current_setting('autovacuum') = 'off' or current_setting('track_counts') = 'off'
    or coalesce(reloptions::text ~ 'autovacuum_enabled=(off|false)', false) as off
from pg_stat_user_tables as t join pg_class on oid = relid
where schemaname = 'agent' and t.relname in ('event', 'event_hist')
"""
_INDEXES = """
select i.indexrelid::regclass::text as name, c.relname as relation, i.indisvalid and i.indisready as valid
, pg_relation_size(i.indexrelid) as size, pg_stat_get_live_tuples(i.indrelid) as rows
from pg_index as i join pg_class as c on c.oid = i.indrelid where c.relnamespace = to_regnamespace('agent') order by 1
"""


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[Connection]:
    """Open a connection for the length of the block."""
    with translating():
        connection = await asyncpg.connect(dsn, timeout=10, statement_cache_size=0, command_timeout=30)
    try:
        yield connection
    finally:
        await connection.close(timeout=5)


async def notifications(dsn: str, connection: Connection) -> Sequence[Finding]:
    """Check that a notification from another session arrives here."""
    arrived: asyncio.Queue[str] = asyncio.Queue()
    word = secrets.token_hex(8)
    await connection.add_listener(CHANNEL, lambda *notice: arrived.put_nowait(str(notice[3])))
    sender = await asyncpg.connect(dsn, timeout=10, statement_cache_size=0)
    try:
        began = time.monotonic()
        await sender.execute("select pg_notify($1, $2)", CHANNEL, word)
        async with asyncio.timeout(PATIENCE):
            while await arrived.get() != word:
                pass
    except TimeoutError:
        advice = (
            "a transaction pooler drops them: connect to PostgreSQL itself,"
            " or let the workers poll with SURELANE_NOTIFICATIONS=off"
        )
        found = f"a notification did not arrive within {span(PATIENCE)}"
        return [Finding("notifications", Level.PROBLEM, found, advice)]
    finally:
        await sender.close(timeout=2)
    return [ok("notifications", f"a notification arrived after {span(time.monotonic() - began)}")]


async def clock(connection: Connection) -> Sequence[Finding]:
    """Compare this machine's clock with the database's."""
    sent = time.time()
    now = float(await connection.fetchval("select extract(epoch from clock_timestamp())"))
    return [clock_finding("this machine's clock", (sent + time.time()) / 2 - now)]


def clock_finding(whose: str, offset: float) -> Finding:
    """Judge a clock that is ``offset`` seconds ahead of the database's."""
    way = "ahead of" if offset > 0 else "behind"
    found = f"{whose} is {span(abs(offset))} {way} the database's"
    advice = "keep both machines' time by NTP: latencies use both clocks, and the check of Slack's signatures uses ours"
    return judged("clock", abs(offset), found, advice, warn=1, fail=30)


async def dead_rows(connection: Connection) -> Sequence[Finding]:
    """Check that vacuum keeps up."""
    rows = await connection.fetch(_TABLES)
    return [_dead(row) for row in rows]


def _dead(row: asyncpg.Record) -> Finding:
    if row["off"]:
        advice = "turn autovacuum and track_counts on: with its dead rows kept, a queue gets slower with every event"
        return Finding("dead rows", Level.PROBLEM, f"{row['relname']}: autovacuum is off", advice)
    vacuumed = "never" if row["vacuumed"] is None else f"{row['vacuumed']:%Y-%m-%d %H:%M} UTC"
    found = f"{row['relname']}: {row['dead']:,} dead rows, {row['live']:,} live; last vacuum: {vacuumed}"
    advice = f"see what the vacuum check found, or run: vacuum (verbose) agent.{row['relname']}"
    # Autovacuum runs on the live queue at 5,000 dead rows, and on history by PostgreSQL's defaults.
    warn = 100_000 + (row["live"] if row["relname"] == "event_hist" else 0)
    return judged("dead rows", row["dead"], found, advice, warn=warn, fail=20 * warn)


async def indexes(connection: Connection) -> Sequence[Finding]:
    """Check that every index is valid, and that none is far larger than its rows need."""
    rows = await connection.fetch(_INDEXES)
    findings = [
        Finding(
            "indexes",
            Level.PROBLEM,
            f"{row['name']} is invalid, and PostgreSQL does not use it",
            f"reindex index concurrently {row['name']}",
        )
        for row in rows
        if not row["valid"]
    ]
    for row in rows:
        if row["size"] > SMALL_INDEX and row["size"] > BLOATED * max(row["rows"], 1):
            found = f"{row['name']} has {row['size'] // 2**20:,} MB for {row['rows']:,} rows"
            advice = f"run when the load is low: reindex index concurrently {row['name']}"
            findings.append(Finding("indexes", Level.WARNING, found, advice))
    return findings or [ok("indexes", f"all {len(rows)} are valid, none is bloated")]
