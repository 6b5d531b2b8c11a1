"""What the operator's page reads does not grow with the queue and its history."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from surelane.calls import Calls, Connection
from surelane_operator.reads.workflows import list_workflows, read_workflow
from tests.databases import Server
from tests.sql.test_plans import read

LIVE = """
insert into agent.event (event_ts, vt, kind, event, item_key, dedupe_key, claimed, attempts, claimed_by, group_key
, head, lane)
select now(), now() - interval '1 hour' + n * interval '1 millisecond', 'k' || n % 5, '{"team_id": "T1"}', 'L' || n
, 'd' || n, case when n % 3 = 0 then array[now()] else '{}' end, (n < 50)::int
, case when n < 50 and n % 3 = 0 then 'w' end, 'g' || n / 10, n % 10 = 0, n % 16 from generate_series(1, $1) as n
"""
ENDED = """
insert into agent.event_hist (id, event_ts, attempts, vt, claimed, event, kind, item_key, group_key, head, lane
, enqueued_at, enqueued_by, claimed_by, retrying, errors, continuation_id, waits_for, outcome, finished_at)
select 1000000 + n, t, 1, t, array[t], '{"team_id": "T1"}', 'k' || n % 5
, case when n % 7 = 0 then 'cron:n:' else 'E' end || n, 'T1:C1:' || n / 10, true, 0, t, 'ingest', 'w', false, '[]'
, case when n % 50 > 0 then 1000000 + n / 50 * 50 end, case when n % 50 = 0 then 0 end
, case when n % 20 = 0 then 'failed' else 'completed' end, t
from generate_series(1, $1) as n cross join lateral (select now() - n * interval '1 second' as t) as moment
"""
TAGGED = """
insert into agent.step (event_id, name, nth, sort, event_ts, arguments, attempt, started_at)
select id, 'customer', -1, 'step', event_ts, 'c' || id % 3, 1, event_ts from agent.event_hist
"""
NARROW = "select * from agent.narrow_jobs({}, null, null, null, null, null, null, {}, {})"
EVERY = "null, null, null, null, '{}'"
READS = {
    "a page of events": NARROW.format("null", 50, EVERY),
    "failed events": NARROW.format("'{failed}'", 50, EVERY),
    "events by what their payloads have": NARROW.format("null", 1000, "'T9', 'C9', 'U9', null, '{}'"),
    "events by error and parts of keys": NARROW.format(
        "null", 1000, "null, null, null, 'nothing', '{nowhere}'"
    ),
    "a thread that has ended": "select * from agent.group_jobs('T1:C1:30', 200)",
    "a thread that is live": "select * from agent.group_jobs('g30', 200)",
    "a message": "select agent.message_jobs('{T1}', 'C1', 1700000000.000100, null)",
    "what has waited the longest": "select * from agent.longest_waiting(12)",
    "what ended lately": "select * from agent.recent_figures(5, 300)",
    "events of a kind": "select * from agent.list_jobs(null, '{k1}')",
    "events that ended on a day": "select * from agent.list_jobs('{completed}', _since => now() - interval '1 hour')",
    "events of a thread": "select * from agent.list_jobs('{completed}', null, 'T1:C1:30')",
    "live events of a natural key": "select * from agent.list_jobs(null, null, 'L30')",
    "live events of a thread": "select * from agent.list_jobs(null, '{k0}', 'g30')",
    "a held event, by its dedupe key": "select * from agent.list_jobs(null, null, 'd30')",
    "an event that waits again, by its dedupe key": "select * from agent.list_jobs(null, null, 'd90')",
    "an event that was never claimed, by its dedupe key": "select * from agent.list_jobs(null, null, 'd31')",
    "events of a key that there is not": "select * from agent.list_jobs(null, null, 'nothing')",
    "a page of a tag": 'select * from agent.list_jobs(_tags => \'{"customer": ["c1", "none"]}\')',
    "a page of a tag, narrowed": NARROW.format(
        "null", 50, "null, null, null, null, '{}', '{\"customer\": [\"c1\"]}'"
    ),
    "all that match, counted": "select agent.count_jobs('{failed}', null, null, null, null, 10)",
    "an event's replies": "select * from agent.list_replies(1000030, now())",
    "what runs": "select * from agent.list_running(null, 20)",
    "open questions": "select * from agent.list_questions(null, null, 50)",
    "use of limits": "select * from agent.limit_use(array['k0'])",
    "firings of a schedule": "select * from agent.firings(array['n'], array[now()], array[now()])",
    "a workflow": "select agent.workflow(1000050), agent.workflow_below(1000050, 0, 50)",
    "why an event waits": "select * from agent.why_waiting((select min(id) from agent.event))",
}
BOUNDED = {
    "kinds, with up to 1,000 failures of each": "select * from agent.list_kinds(null, null, 100)",
    "the queue's depth, up to 10,000 events of a kind": "select agent.queue_figures(null)",
    "workflows": "select agent.list_workflows(null, null, 50)",
}
"""Reads that grow up to a bound, or with what is live."""
SMALL, LARGE = 1_000, 30_000


async def fewest_pages(queue: Connection, statement: str) -> int:
    """Count the pages that a statement reads, at the least of three times.

    Many changes in other databases of the server, such as a migration, empty the caches of all sessions.
    """
    return min([(await read(queue, statement))[0] for _ in range(3)])


async def filled(server: Server, name: str, events: int) -> Connection:
    queue = await asyncpg.connect(server.admin, database=name)
    await queue.execute("insert into agent.kind select 'k' || n from generate_series(0, 4) as n")
    # An automatic analyze would make sessions plan anew, and read pages of the catalogue.
    for table in ("event", "event_hist", "step"):
        await queue.execute(f"alter table agent.{table} set (autovacuum_enabled = off)")
    # Without the trigger that looks for heads: its work grows with the members.
    await queue.execute("set session_replication_role = replica")
    await queue.execute(LIVE.replace("$1", str(events)))
    await queue.execute(ENDED.replace("$1", str(events)))
    await queue.execute("reset session_replication_role")
    await queue.execute(TAGGED)
    await queue.execute("analyze agent.event, agent.event_hist, agent.step")
    # Otherwise the first reads are blamed for the scans above.
    await queue.execute("select pg_stat_force_next_flush()")
    return queue


@pytest.fixture(scope="module")
async def queues(server: Server, template: str) -> AsyncIterator[list[Connection]]:
    async with server.fresh(template) as small, server.fresh(template) as large:
        both = [await filled(server, name, events) for name, events in ((small, SMALL), (large, LARGE))]
        yield both
        for queue in both:
            await queue.close()


@pytest.mark.parametrize("statement", READS.values(), ids=READS)
async def test_a_read_scans_nothing_and_does_not_grow(queues: list[Connection], statement: str) -> None:
    small, large = queues
    assert await fewest_pages(large, statement) <= 2 * await fewest_pages(small, statement) + 400
    assert await scanned(large, statement) == []


@pytest.mark.parametrize("statement", BOUNDED.values(), ids=BOUNDED)
async def test_a_bounded_read_scans_nothing(queues: list[Connection], statement: str) -> None:
    assert await scanned(queues[1], statement) == []


async def test_reads_find_what_they_look_for_in_a_long_history(queues: list[Connection]) -> None:
    _, large = queues
    assert len((await list_workflows(Calls(large), limit=20)).workflows) == 20
    found = await read_workflow(Calls(large), 1_000_050)
    assert found is not None
    assert (found.tree.children, len(found.tree.below)) == ({"completed": 47, "failed": 2}, 49)
    assert await large.fetchval("select failed from agent.list_kinds(null, null, 10)") == 1000, "the bound"


async def scanned(large: Connection, statement: str) -> list[str]:
    async with large.transaction():
        await large.fetch(statement)
        rows = await large.fetch(
            "select relname from pg_stat_xact_user_tables where schemaname = 'agent'"
            " and relname in ('event', 'event_hist', 'step') and seq_scan > 0"
        )
    return [row[0] for row in rows]
