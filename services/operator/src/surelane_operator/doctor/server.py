"""Check the server: schema, roles, notifications, clocks, dead rows, indexes."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager

import asyncpg

from surelane import __version__
from surelane.calls import Connection, translating
from surelane_operator.doctor.finding import Finding, Level, judged, ok, span
from surelane_operator.times import read_any_time
from surelane_service.common.connecting import UNVERIFIED, connect, unverified
from surelane_service.common.needs import answered
from surelane_service.compatibility import unfit

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
MIGRATE = "run: python -m surelane_migrations apply"
GRANT = f"{MIGRATE} --again"
_CALLS = {"agent_ingest": "insert_events", "agent_worker": "claim_events", "agent_operator": "list_jobs"}
"""Each role, and a function that its services must be able to call."""

_GRANTS = """
select role, to_regrole(role) is not null as there
, to_regrole(role) is not null and exists (
    select from pg_proc where pronamespace = to_regnamespace('agent') and proname = function
    and has_function_privilege(to_regrole(role)::oid, oid, 'execute')) as may
from unnest($1::text[], $2::text[]) as wanted (role, function)
"""
_OPEN_TO_ALL = """
select proname from pg_proc where pronamespace = to_regnamespace('agent')
and exists (select from aclexplode(coalesce(proacl, acldefault('f', proowner))) as g where g.grantee = 0) order by 1
"""


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[Connection]:
    """Open a connection for the length of the block. Each statement has 30 seconds."""
    with translating():
        connection = await connect(
            dsn,
            # A move waits in a transaction for what runs.
            settings={"application_name": "surelane", "idle_in_transaction_session_timeout": "0"},
            timeout=10,
            command_timeout=30,
            # A transaction pooler loses prepared statements, and a command sends each statement once.
            statement_cache_size=0,
        )
    try:
        with translating():
            await read_any_time(connection)
        yield connection
    finally:
        await connection.close(timeout=2)


async def notifications(dsn: str, connection: Connection) -> Sequence[Finding]:
    """Check that a notification from another session arrives here."""
    arrived: asyncio.Queue[str] = asyncio.Queue()
    word = secrets.token_hex(8)
    await connection.add_listener(CHANNEL, lambda *notice: arrived.put_nowait(str(notice[3])))
    try:
        async with connected(dsn) as sender:
            began = time.monotonic()
            await sender.execute("select pg_notify($1, $2)", CHANNEL, word)
            async with asyncio.timeout(PATIENCE):
                while await arrived.get() != word:
                    pass
            took = time.monotonic() - began
    except TimeoutError:
        advice = (
            "a transaction pooler drops them: connect to PostgreSQL itself,"
            " or let the workers poll with SURELANE_NOTIFICATIONS=off"
        )
        found = f"a notification did not arrive within {span(PATIENCE)}"
        return [Finding("notifications", Level.PROBLEM, found, advice)]
    return [ok("notifications", f"a notification arrived after {span(took)}")]


async def certificate(dsn: str) -> Sequence[Finding]:
    """Check that a database elsewhere proves by its certificate that it is the database."""
    if host := unverified(dsn):
        return [Finding("certificate", Level.WARNING, f"that of {host} is not checked", UNVERIFIED)]
    return [ok("certificate", "it is checked, or the database is on this machine or in this network")]


async def timeline(connection: Connection) -> Sequence[Finding]:
    """Check that the server is no former primary: services would have seen a newer timeline of it."""
    row = await connection.fetchrow("select timeline, newest from agent.own_timeline()")
    if row is None or row["timeline"] is None:
        return [Finding("timeline", Level.UNKNOWN, "the server is a standby, or does not tell its timeline")]
    found = f"timeline {row['timeline']}; the newest that services saw is {row['newest']}"
    if row["timeline"] == row["newest"]:
        return [ok("timeline", found)]
    advice = "this was the primary before a failover: stop it, and let DATABASE_URL lead to the new primary"
    return [Finding("timeline", Level.PROBLEM, found, advice)]


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


async def foreign_locks(connection: Connection) -> Sequence[Finding]:
    """Check that no other login has one of the queue's advisory locks."""
    rows = await connection.fetch("select * from agent.foreign_locks() order by pid limit 5")
    if not rows:
        return [ok("foreign locks", "no other login has a lock of the queue's")]
    named = "; ".join(
        f"process {row['pid']} ({row['application'] or 'no application name'}, role {row['role']}): {row['what']}"
        for row in rows
    )
    advice = (
        "end it: select pg_terminate_backend(PID); and ask why its login takes locks that are not its own"
    )
    return [
        Finding(
            "foreign locks",
            Level.WARNING,
            f"the queue goes on without locks that others have: {named}",
            advice,
        )
    ]


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
    rows, findings = await connection.fetch(_INDEXES), []
    for row in rows:
        if not row["valid"]:
            found = f"{row['name']} is invalid, and PostgreSQL does not use it"
            advice = f"reindex index concurrently {row['name']}"
            findings.append(Finding("indexes", Level.PROBLEM, found, advice))
        if row["size"] > SMALL_INDEX and row["size"] > BLOATED * max(row["rows"], 1):
            found = f"{row['name']} has {row['size'] // 2**20:,} MB for {row['rows']:,} rows"
            advice = f"run when the load is low: reindex index concurrently {row['name']}"
            findings.append(Finding("indexes", Level.WARNING, found, advice))
    return findings or [ok("indexes", f"all {len(rows)} are valid, none is bloated")]


async def schema(connection: Connection) -> Sequence[Finding]:
    """Check that the schema exists and serves this version."""
    try:
        row = await connection.fetchrow("select version, min_compatible from agent.schema_version()")
    except (asyncpg.UndefinedFunctionError, asyncpg.InvalidSchemaNameError):
        row = None
    if row is None:
        return [Finding("schema", Level.PROBLEM, "the database has no schema agent", MIGRATE)]
    reason = unfit(row["version"], row["min_compatible"])
    if reason is not None:
        return [Finding("schema", Level.PROBLEM, reason, f"{MIGRATE}, or use a matching version of Surelane")]
    server = await connection.fetchval("show server_version")
    return [ok("schema", f"version {row['version']} serves {__version__}; PostgreSQL {server}")]


async def needs(connection: Connection, names: Collection[str] = ()) -> Sequence[Finding]:
    """Check what Surelane needs of a database: all of it, or what is named."""
    answers = await answered(connection, names)
    return [Finding(each.name, Level(each.level), each.found, each.advice) for each in answers]


async def roles(connection: Connection) -> Sequence[Finding]:
    """Check that the roles exist and have their rights, and that PUBLIC has none."""
    rows = await connection.fetch(_GRANTS, list(_CALLS), list(_CALLS.values()))
    missing = [row["role"] for row in rows if not row["there"]]
    idle = [row["role"] for row in rows if row["there"] and not row["may"]]
    findings = []
    if missing:
        creating = "; ".join(f"create role {role} nologin" for role in missing)
        advice = f"as an administrator: {creating}; then {GRANT}"
        found = f"these roles are missing: {', '.join(missing)}"
        findings.append(Finding("roles", Level.PROBLEM, found, advice))
    if idle:
        found = f"these roles lack their rights: {', '.join(idle)}"
        findings.append(Finding("roles", Level.PROBLEM, found, GRANT))
    public = [row["proname"] for row in await connection.fetch(_OPEN_TO_ALL)]
    if public:
        findings.append(Finding("roles", Level.WARNING, f"every role may call: {', '.join(public)}", GRANT))
    return findings or [ok("roles", f"{', '.join(_CALLS)} have their rights")]


async def first_calls(connection: Connection) -> Sequence[Finding]:
    """Make each service's first calls with the rights of its role, and take them back."""
    rows = await connection.fetch("select * from agent.first_calls()")
    findings = []
    for row in rows:
        if row["code"] is not None:
            where = "" if row["object"] is None else f", {row['object']}"
            found = f"{row['role']} cannot call {row['call']}: {row['message']} ({row['code']}{where})"
            advice = GRANT if row["code"] == "42501" else "mend what the message names; services wait for it"
            findings.append(Finding("first calls", Level.PROBLEM, found, advice))
    calls = ", ".join(row["call"] for row in rows)
    # A definer's function may not change its role, and operators are in none of the others.
    looked = "made as the schema's owner, after a look at each role's rights, and taken back"
    return findings or [ok("first calls", f"{len(rows)} work, {looked}: {calls}")]
