"""Checks of the server: notifications, clocks, vacuum's work, indexes."""

import asyncio
import secrets
import time
from collections.abc import Sequence

import asyncpg

from surelane.calls import Connection
from surelane_operator.doctor.finding import Finding, Level, judged, ok, span

CHANNEL = "surelane_doctor"
PATIENCE = 3.0
SMALL_INDEX = 64 * 1024 * 1024
BLOATED = 2000
"""Bytes of an index for each row of its table; sound ones have about a hundred."""

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


async def notifications(dsn: str, connection: Connection) -> Sequence[Finding]:
    """Whether a notice that another session sends arrives here."""
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
            "behind a transaction pooler: connect to PostgreSQL itself,"
            " or let the workers poll: SURELANE_NOTIFICATIONS=off"
        )
        found = f"a notice did not arrive within {span(PATIENCE)}"
        return [Finding("notifications", Level.PROBLEM, found, advice)]
    finally:
        await sender.close(timeout=2)
    return [ok("notifications", f"a notice arrived after {span(time.monotonic() - began)}")]


async def clock(connection: Connection) -> Sequence[Finding]:
    """How far this machine's clock is from the database's."""
    sent = time.time()
    now = float(await connection.fetchval("select extract(epoch from clock_timestamp())"))
    return [clock_finding("this machine's clock", (sent + time.time()) / 2 - now)]


def clock_finding(whose: str, offset: float) -> Finding:
    """A finding by how far a clock is ahead, in seconds."""
    way = "ahead of" if offset > 0 else "behind"
    found = f"{whose} is {span(abs(offset))} {way} the database's"
    advice = "let both machines keep time by NTP: latencies are measured by both clocks, and Slack's signatures by ours"
    return judged("clock", abs(offset), found, advice, warn=1, fail=30)


async def dead_rows(connection: Connection) -> Sequence[Finding]:
    """Whether vacuum keeps up."""
    rows = await connection.fetch(_TABLES)
    return [_dead(row) for row in rows]


def _dead(row: asyncpg.Record) -> Finding:
    if row["off"]:
        advice = (
            "turn autovacuum and track_counts on: a queue whose dead rows stay gets slower with every event"
        )
        return Finding("dead rows", Level.PROBLEM, f"{row['relname']}: autovacuum is off", advice)
    vacuumed = "never" if row["vacuumed"] is None else f"{row['vacuumed']:%Y-%m-%d %H:%M} UTC"
    found = f"{row['relname']}: {row['dead']:,} dead beside {row['live']:,} live; vacuumed last: {vacuumed}"
    advice = f"see check vacuum for what holds it back; else: vacuum (verbose) agent.{row['relname']}"
    # The live queue is vacuumed every 5,000 dead rows, history by PostgreSQL's defaults.
    warn = 100_000 + (row["live"] if row["relname"] == "event_hist" else 0)
    return judged("dead rows", row["dead"], found, advice, warn=warn, fail=20 * warn)


async def indexes(connection: Connection) -> Sequence[Finding]:
    """Whether every index is used, and none is far larger than its rows need."""
    rows = await connection.fetch(_INDEXES)
    findings = [
        Finding(
            "indexes",
            Level.PROBLEM,
            f"{row['name']} is invalid and not used",
            f"reindex index concurrently {row['name']}",
        )
        for row in rows
        if not row["valid"]
    ]
    for row in rows:
        if row["size"] > SMALL_INDEX and row["size"] > BLOATED * max(row["rows"], 1):
            found = f"{row['name']} has {row['size'] // 2**20:,} MB for {row['rows']:,} rows"
            advice = f"in a quiet hour: reindex index concurrently {row['name']}"
            findings.append(Finding("indexes", Level.WARNING, found, advice))
    return findings or [ok("indexes", f"{len(rows)} are valid, none is bloated")]
