"""Claims, settles, lookups and sweeps read as many pages at 100,000 events as at 1,000."""

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from tests.databases import Server
from tests.needs import lacking
from tests.sql.queue_steps import envelope

SMALL, LARGE = 1_000, 100_000
SCANS = [("Seq Scan", "event"), ("Seq Scan", "event_hist")]

FILL = """
insert into agent.event
( event_ts, vt, kind, event, item_key, dedupe_key, head, lane, attempts, claimed, claimed_by, heartbeat_at)
select now()
, now() - interval '10 minutes' + n % 100000 * interval '1 millisecond' + interval '1 day' * ahead::int
, case when ahead then 'job' else kind end, '{}', kind || n, case when kind = 'job' then 'd' || n end, true, n % 16
, case when runs then 1 else 0 end, case when runs then array[now()] else '{}' end
, case when runs then 'w' end, case when runs then now() end
from unnest(array['job', 'job', 'parked', 'unhandled', 'scheduled', 'running']) with ordinality as kinds (kind, nth)
cross join lateral (values (kind in ('scheduled', 'running'), kind = 'running')) as state (ahead, runs)
cross join lateral (select generate_series(1000000 * nth, 1000000 * nth + $1 - 1)) as numbers (n)
"""
CROWD = """
insert into agent.event (event_ts, vt, kind, event, group_key, head, lane)
select now() + n * interval '1 millisecond', now() - interval '10 minutes' + n * interval '1 millisecond', 'crowd', '{}'
, 'crowd', n = 1, 3 from generate_series(1, $1) as n
"""
LIMITED = """
insert into agent.kind_limit (kind, concurrency) values ('limited', 50);
insert into agent.event (event_ts, vt, kind, event, head, lane)
select now(), now() - interval '10 minutes' + n * interval '1 millisecond', 'limited', '{}', true, -2
from generate_series(1, $1) as n;
delete from agent.limit_note;
select agent.note_keys('limited', 1)
"""
ENDED = """
insert into agent.event_hist
( id, event_ts, attempts, vt, claimed, event, kind, head, lane, enqueued_at, enqueued_by, retrying, errors, outcome)
select 90000000 + n, now() - interval '4 days', 1, now(), '{}', '{"user": "U2"}', 'ended', true, 0, now()
, 'x', false, '[]', 'completed' from generate_series(1, $1) as n
"""
HISTORY = '{"place": "event_hist", "until": 100000000}'
EVENTS = [envelope(f"Ev{number}", channel=f"C{number}", channel_type="im") for number in range(20)]
BATCH = ", ".join(f"jsonb '{event}'" for event in EVENTS)
QUEUED = ", ".join(f"'job{1_000_000 + number}'" for number in range(20))
STATEMENTS = {
    "claim": "select * from agent.claim_events(array['job', 'parked', 'other'], 100)",
    "claim that overtakes": "select * from agent.claim_events(array['job'], 10)",
    "single claim": "select * from agent.claim_event()",
    "claim of a crowded group": "select * from agent.claim_events(array['crowd'], 10)",
    "claim of a limited kind": "select * from agent.claim_events(array['limited', 'other'], 100)",
    "promotion in a crowded group": "select agent.delete_event(id) from agent.event where group_key = 'crowd' and head",
    "insert into a crowded group": "select agent.enqueue('crowd', _group_key => 'crowd')",
    "lookup by dedupe key": "select agent.enqueue('job', _dedupe_key => 'd1000007')",
    "lookup by item key": "select agent.enqueue('job', _item_key => 'job1000007')",
    "insert": f"select agent.insert_event('{envelope('Ev1')}')",
    "insert of a batch": f"select * from agent.insert_events(array[{BATCH}])",
    "insert of a batch of duplicates": f"select * from agent.insert_events(array[{BATCH}], null, array[{QUEUED}])",
    "sweep": "select agent.sweep_events()",
    "peek": "select agent.peek_lanes(array['job', 'parked', 'other'], '2 days', null, null)",
    "retention": "select * from agent.drop_history('3 days', 0, 50)",
    "erasing from the queue": """select agent.preview_erasure('{"user": "U1"}', null, 50)""",
    "erasing from history": f"""select agent.preview_erasure('{{"user": "U1"}}', '{HISTORY}', 50)""",
    "thread": """select agent.thread_events(array['crowd'], 'C1', ts, ts, 'thread') from (
        select extract(epoch from event_ts)::numeric(16, 6)::text as ts
        from agent.event where group_key = 'crowd' and head
        ) as first""",
    "cancel": "select agent.cancel_event('scheduled5000007')",
    "reschedule": "select agent.reschedule_event('scheduled5000007', now() + interval '1 day')",
}
statements = pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS)


@dataclass
class Backlog:
    """An administrator's connections to a database with a short queue, and to one with a long queue."""

    short: Connection
    long: Connection


async def filled(server: Server, name: str, events: int) -> Connection:
    """Fill a database with a backlog of every sort, one sixth each, and a group of twice as many."""
    queue = await asyncpg.connect(server.admin, database=name)
    await queue.execute("insert into agent.kind select unnest(array['job', 'parked', 'unhandled', 'crowd'])")
    await queue.execute(FILL.replace("$1", str(events // 6)))
    # Without the trigger that looks for a better head at each member: its work grows with the square of their number.
    await queue.execute("set session_replication_role = replica")
    await queue.execute(CROWD.replace("$1", str(events // 3)))
    await queue.execute("reset session_replication_role")
    await queue.execute("select agent.register_kinds(array['limited'])")
    await queue.execute(LIMITED.replace("$1", str(events // 6)))
    async with undone(queue):
        assert len(await queue.fetch("select id from agent.claim_events(array['limited'], 100)")) == 50
    await queue.execute("select agent.pause_kind('parked')")
    await queue.execute(ENDED.replace("$1", str(events // 10)))
    await queue.execute("select agent.enqueue('job', '{}', 0) from generate_series(1, 40)")
    return queue


async def explaining(queue: Connection) -> Connection:
    """Yield the connection, which now logs the plans of statements inside functions."""
    try:
        await queue.execute("load 'auto_explain'")
    except asyncpg.UndefinedFileError:
        lacking("this server comes without auto_explain")
    await queue.execute(
        "set auto_explain.log_nested_statements = on; set auto_explain.log_analyze = on;"
        " set auto_explain.log_timing = off; set auto_explain.log_format = json; set auto_explain.log_min_duration = -1"
    )
    return queue


@pytest.fixture(scope="module")
async def backlog(server: Server, template: str) -> AsyncIterator[Backlog]:
    async with server.fresh(template) as short, server.fresh(template) as long:
        both = Backlog(await filled(server, short, SMALL), await filled(server, long, LARGE))
        yield both
        await both.short.close()
        await both.long.close()


async def pages_read(queue: Connection, statement: str) -> int:
    """Count the pages that a statement reads, once its plans are made. Roll it back."""
    for _ in range(2):
        async with undone(queue):
            plan = await queue.fetchval(f"explain (analyze, buffers, timing off, format json) {statement}")
    top = json.loads(plan)[0]["Plan"]
    return int(top["Shared Hit Blocks"] + top["Shared Read Blocks"])


class undone:  # noqa: N801 - reads as a statement
    """Run the block in a transaction that is rolled back."""

    def __init__(self, queue: Connection) -> None:
        self._transaction = queue.transaction()

    async def __aenter__(self) -> None:
        await self._transaction.start()

    async def __aexit__(self, *_: object) -> None:
        await self._transaction.rollback()


async def plans_of(queue: Connection, statement: str) -> list[dict[str, Any]]:
    """Return the plans of a statement and of all statements in its functions."""
    logged: list[str] = []
    listener = lambda _, message: logged.append(message.message)  # noqa: E731
    queue.add_log_listener(listener)
    try:
        async with undone(queue):
            await queue.execute(
                "set local client_min_messages = log; set local auto_explain.log_min_duration = 0"
            )
            await queue.execute(statement)
            await queue.execute("set local auto_explain.log_min_duration = -1")
    finally:
        queue.remove_log_listener(listener)
    return [json.loads(text[text.index("{") :]) for text in logged if "plan:" in text]


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a plan's nodes."""
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


@statements
async def test_what_a_call_reads_does_not_grow_with_the_queue(backlog: Backlog, statement: str) -> None:
    short, long = await pages_read(backlog.short, statement), await pages_read(backlog.long, statement)
    assert long <= 2 * short + 150, f"{short} pages at {SMALL} events, {long} at {LARGE}"


@statements
async def test_no_call_scans_or_sorts_the_queue(backlog: Backlog, statement: str) -> None:
    plans = await plans_of(await explaining(backlog.long), statement)
    assert plans
    for plan in plans:
        for node in nodes(plan["Plan"]):
            text = plan["Query Text"]
            assert (node["Node Type"], node.get("Relation Name")) not in SCANS, text
            assert node["Node Type"] != "Bitmap Heap Scan" or node["Actual Rows"] < SMALL, text
            assert node["Node Type"] != "Sort" or node["Actual Rows"] < SMALL, text
            assert node.get("Rows Removed by Filter", 0) < SMALL, text
        assert "JIT" not in plan, plan["Query Text"]


async def test_exhausted_events_ahead_cost_a_bounded_sweep(backlog: Backlog) -> None:
    """A claim has at most 1,000 of them swept, with any number before the first claimable event.

    It passes over the others, with a read of two pages each at most, and still finds the event.
    """
    exhausted = (
        "update agent.event set attempts = 3, claimed_by = 'w', claimed = array[now()] where id in"
        " (select id from agent.event where kind = 'job' and vt <= now() order by vt limit {})"
    )
    costs = []
    for count in (5_000, 20_000):
        async with undone(backlog.long):
            await backlog.long.execute(exhausted.format(count))
            await backlog.long.fetch("select * from agent.claim_events(array['job'], 10)")
            before = await backlog.long.fetchval("select count(*) from agent.event_hist")
            plan = await backlog.long.fetchval(
                "explain (analyze, buffers, format json) select * from agent.claim_events(array['job'], 10)"
            )
            swept = await backlog.long.fetchval("select count(*) from agent.event_hist") - before
            assert swept <= 1_000
            costs.append(json.loads(plan)[0]["Plan"]["Shared Hit Blocks"])
    assert costs[1] <= 1.5 * costs[0] + 2 * (20_000 - 5_000)
