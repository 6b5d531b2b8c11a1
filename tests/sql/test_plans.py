"""Calls read as much at 20,000 events as at 1,000, whenever the tables were analyzed.

No analyze comes by itself here: each state of the statistics is made.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from surelane.calls import Connection
from tests.databases import Server
from tests.sql.queue_steps import envelope

pytestmark = pytest.mark.slow

SMALL, LARGE = 1_000, 20_000

ANALYZED = ("never", "while it was empty", "while it was short", "now")
UNTOUCHED = """
do $$
declare _table regclass;
begin
    for _table in select oid from pg_class where relnamespace = 'agent'::regnamespace and relkind = 'r' loop
        execute format('alter table %s set (autovacuum_enabled = off)', _table);
    end loop;
end $$
"""
READ = """
select (select coalesce(sum(pg_stat_get_xact_tuples_returned(oid)), 0) from pg_class
    where relnamespace = 'agent'::regnamespace and relkind in ('r', 'i'))::int
"""
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
    "sweep by age": "select agent.sweep_events(3, '1 minute', array['job'], _limit => 10)",
    "notes of a limited kind": "select agent.note_keys('limited', 10)",
    "parking": "select agent.park_events('limited', 10)",
    "sharing of lanes": "select agent.share_kind('job')",
    "batch into a crowded group": """select agent.enqueue_jobs('[{"kind": "job", "group_key": "crowd"}]')""",
    "jobs again": "select agent.rerun_events(array[90000007])",
    "jobs of a group": "select agent.group_jobs('crowd', 50)",
    "jobs of a message": """select agent.message_jobs(array['crowd'], null, moment::numeric(16, 6), null)
        from agent.event cross join extract(epoch from event_ts) as moment where group_key = 'crowd' and head""",
    "peek": "select agent.peek_lanes(array['job', 'parked', 'other'], '2 days', null, null)",
    "retention": "select * from agent.drop_history('3 days', 0, 50)",
    "erasing from the queue": """select agent.preview_erasure('{"user": "U1"}', null, 50)""",
    "erasing from history": f"""select agent.preview_erasure('{{"user": "U1"}}', '{HISTORY}', 50)""",
    "joining": """select agent.waiting_messages(id, event_ts, array[group_key], 'thread'), agent.joined_turn(id
        , event_ts, array[group_key], null) from agent.event where group_key = 'crowd' and head""",
    "thread": """select agent.thread_events(array['crowd'], 'C1', ts, ts, 'thread') from (
        select extract(epoch from event_ts)::numeric(16, 6)::text as ts
        from agent.event where group_key = 'crowd' and head
        ) as first""",
    "cancel": "select agent.cancel_event('scheduled5000007')",
    "reschedule": "select agent.reschedule_event('scheduled5000007', now() + interval '1 day')",
}
Backlog = tuple[Connection, Connection]
"""An administrator's connections to a database with a short queue, and to one with a long queue."""


async def filled(server: Server, name: str, events: int, analyzed: str) -> Connection:
    """Fill a database with a backlog of every sort, one sixth each, and a group of twice as many."""
    queue = await asyncpg.connect(server.admin, database=name)
    await queue.execute(UNTOUCHED)
    await queue.execute("insert into agent.kind select unnest(array['job', 'parked', 'unhandled', 'crowd'])")
    if analyzed == "while it was short":
        await queue.execute(FILL.replace("$1", "2"))
    if analyzed in ("while it was short", "while it was empty"):
        await queue.execute("analyze; delete from agent.event")
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
    if analyzed == "now":
        await queue.execute("analyze")
    return queue


@pytest.fixture(scope="module", params=ANALYZED)
async def backlog(request: pytest.FixtureRequest, server: Server, template: str) -> AsyncIterator[Backlog]:
    async with server.fresh(template) as short, server.fresh(template) as long:
        queues = [
            await filled(server, name, events, request.param)
            for name, events in ((short, SMALL), (long, LARGE))
        ]
        yield queues[0], queues[1]
        for queue in queues:
            await queue.close()


async def read(queue: Connection, statement: str) -> tuple[int, int]:
    """Count the pages and rows that a statement reads, once its plans are made. Roll it back.

    Take the lesser of two counts: where another test makes or drops a database, plans are made anew.
    """
    assert await queue.fetchval("select current_setting('tests.shared', true) is null"), (
        "its dead rows would count"
    )
    counts = []
    for _ in range(3):
        async with undone(queue):
            before = await queue.fetchval(READ)
            plan = await queue.fetchval(f"explain (analyze, buffers, timing off, format json) {statement}")
            rows = await queue.fetchval(READ) - before
        top = json.loads(plan)[0]["Plan"]
        counts.append((int(top["Shared Hit Blocks"] + top["Shared Read Blocks"]), rows))
    return min(counts[1:])


@asynccontextmanager
async def undone(queue: Connection) -> AsyncIterator[None]:
    """Run the block in a transaction that is rolled back."""
    transaction = queue.transaction()
    await transaction.start()
    try:
        yield
    finally:
        await transaction.rollback()


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS)
async def test_what_a_call_reads_does_not_grow_with_the_queue(backlog: Backlog, statement: str) -> None:
    """So it scans, sorts and filters none of the queue, whose every sort of events grows by thousands."""
    (short, _), (long, rows) = [await read(queue, statement) for queue in backlog]
    assert rows < SMALL, f"{rows} rows at {LARGE} events"
    assert long <= 2 * short + 150, f"{short} pages at {SMALL} events, {long} at {LARGE}"


async def test_exhausted_events_ahead_cost_a_bounded_sweep(backlog: Backlog) -> None:
    """A claim has at most 1,000 of them swept, with any number before the first claimable event.

    It passes over the others, with a read of two pages each at most, and still finds the event.
    """
    exhausted = (
        "update agent.event set attempts = 3, claimed_by = 'w', claimed = array[now()] where id in"
        " (select id from agent.event where kind = 'job' and vt <= now() order by vt limit {})"
    )
    claim, ended = (
        "select * from agent.claim_events(array['job'], 10)",
        "select count(*) from agent.event_hist",
    )
    _, queue = backlog
    costs = []
    for count in (1_500, 6_000):
        async with undone(queue):
            await queue.execute(exhausted.format(count))
            await queue.fetch(claim)
            before = await queue.fetchval(ended)
            plan = await queue.fetchval(f"explain (analyze, buffers, format json) {claim}")
            swept = await queue.fetchval(ended) - before
            assert swept <= 1_000
            costs.append(json.loads(plan)[0]["Plan"]["Shared Hit Blocks"])
    assert costs[1] <= 1.5 * costs[0] + 2 * (6_000 - 1_000), "it read more than the first claim left"
