"""Jobs are enqueued, deduplicated, rescheduled, requeued and listed as documented."""

import asyncio
import hashlib
import json
from datetime import timedelta
from random import Random
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from tests.databases import Server
from tests.sql import queue_steps as do
from tests.sql.conftest import Connect
from tests.sql.migrations import connected
from tests.sql.queue_steps import TEN_MINUTES, Row, envelope, pair
from tests.sql.test_console_reads import fewest_pages


async def reschedule(queue: Connection, key: str, shift: str) -> str | None:
    answer: str | None = await queue.fetchval(
        "select agent.reschedule_event($1, agent.clock() + $2::text::interval)", key, shift
    )
    return answer


async def requeue(queue: Connection, *identities: int) -> list[int]:
    rows = await queue.fetch("select agent.rerun_events($1) as id", identities)
    return [row["id"] for row in rows]


async def test_a_job_keeps_what_it_was_given(queue: Connection) -> None:
    at = await queue.fetchval("select agent.clock() + interval '1 hour'")
    keys = {"dedupe_key": "slack:1:2", "group_key": "user:1", "item_key": "turn:1"}
    rest = {"enqueued_by": "gateway", "deadline": at + timedelta(hours=1), "traceparent": "00-aa"}
    given = {"payload": '{"userId": 1}', "run_at": at, "max_attempts": 5}
    identity = await do.enqueue(queue, "agent-turn", **keys, **rest, **given)
    row = await do.event_of(queue, identity)
    assert (row["kind"], json.loads(row["event"])) == ("agent-turn", {"userId": 1})
    assert row["dedupe_key"] == "slack:1:2"
    assert (row["vt"], row["event_ts"], row["deadline"]) == (at, at, at + timedelta(hours=1))
    assert (row["max_attempts"], row["group_key"], row["item_key"]) == (5, "user:1", "turn:1")
    assert (row["enqueued_by"], row["traceparent"], row["attempts"]) == ("gateway", "00-aa", 0)
    late = await do.enqueue(queue, run_at=at - timedelta(days=9))
    soon = "select agent.clock() - vt < interval '1 minute' from agent.event where id = $1"
    assert await queue.fetchval(soon, late), "its time is in the past: it runs now"


@pytest.mark.parametrize("settle", [do.fail, do.release])
async def test_a_job_that_comes_back_does_not_meet_its_duplicate(queue: Connection, settle: Any) -> None:
    """The first claim clears the dedupe key, for good. An item key is taken while its event is live."""
    first = await do.enqueue(queue, dedupe_key="k", item_key="i")
    (row,) = await do.claim(queue)
    second = await do.enqueue(queue, dedupe_key="k")
    assert await settle(queue, pair(row)) == ["done"]
    rows = await do.claim(queue)
    assert {row["id"] for row in rows} == {first, second}
    assert await do.enqueue(queue, dedupe_key="k") not in {first, second}
    assert await do.enqueue(queue, item_key="i") == first
    assert await do.complete(queue, *map(pair, rows)) == ["done", "done"]
    assert await do.enqueue(queue, item_key="i") != first


@pytest.mark.parametrize("on_duplicate", ["skip", "replace", "earliest"])
@pytest.mark.parametrize("key", ["dedupe_key", "item_key"])
async def test_a_key_of_another_kind_is_refused_by_name(
    queue: Connection, key: str, on_duplicate: str
) -> None:
    first = await do.enqueue(queue, "send-mail", payload='{"to": "anna"}', **{key: "user-7"})
    told = f"event {first} of kind send-mail has the {key.replace('_', ' ')} 'user-7'"
    with pytest.raises(asyncpg.UniqueViolationError, match=told):
        await do.enqueue(queue, "sync-user", on_duplicate=on_duplicate, **{key: "user-7"})
    jobs = [{"kind": kind, key: "user-8"} for kind in ("send-mail", "sync-user")]
    for batch in (jobs, [{"kind": "other"}, {"kind": "sync-user", key: "user-7"}]):
        with pytest.raises(asyncpg.UniqueViolationError, match="give a job of kind"):
            await queue.execute("select agent.enqueue_jobs($1, $2)", json.dumps(batch), on_duplicate)
    assert [tuple(row) for row in await queue.fetch("select kind, event from agent.event")] == [
        ("send-mail", '{"to": "anna"}')
    ]
    assert await do.enqueue(queue, "send-mail", on_duplicate=on_duplicate, **{key: "user-7"}) == first


async def test_a_pending_job_answers_for_its_dedupe_key(queue: Connection, connect: Connect) -> None:
    """A claim that rolls back makes it pending again. After a commit, a new job is stored beside it."""
    others = [await connect() for _ in range(6)]
    identities = await asyncio.gather(*(do.enqueue(other, dedupe_key="k", group_key="g") for other in others))
    assert len(set(identities)) == 1
    assert await queue.fetchval("select count(*) from agent.event") == 1
    await queue.execute("delete from agent.event")
    other = others[0]
    first = await do.enqueue(other, dedupe_key="k", payload='{"n": 1}')
    assert await do.enqueue(queue, dedupe_key="k", payload='{"n": 2}') == first
    assert await queue.fetchval("select event ->> 'n' from agent.event") == "1"
    async with other.transaction():
        assert len(await do.claim(other)) == 1
        second = asyncio.create_task(do.enqueue(queue, dedupe_key="k"))
        await do.waits_for_lock(other, queue)
    assert await second != first
    assert await do.enqueue(queue, dedupe_key="k") == await second


async def enqueue_jobs(queue: Connection, jobs: list[Any], on_duplicate: str = "skip") -> list[Row]:
    store = "select id, duplicate from agent.enqueue_jobs($1, $2) order by ordinal"
    return list(await queue.fetch(store, json.dumps(jobs), on_duplicate))


async def test_a_batch_answers_each_job_in_its_place(queue: Connection) -> None:
    pending = await do.enqueue(queue, item_key="there", dedupe_key="d")
    batch: list[dict[str, Any]] = [
        {"kind": "job", "item_key": "z", "group_key": "g", "payload": {"n": 0}},
        {"kind": "job", "item_key": "there"},
        {"kind": "job", "dedupe_key": "d"},
        {"kind": "job", "item_key": "a", "group_key": "g", "payload": {"n": 1}, "max_attempts": 7},
        {"kind": "job", "item_key": "z"},
        {"kind": "job", "item_key": "k" * 300, "enqueued_by": "me"},
        {"kind": "job", "item_key": "k" * 300},
    ]
    rows = await enqueue_jobs(queue, batch)
    assert [row["duplicate"] for row in rows] == [False, True, True, False, True, False, True]
    assert (rows[1]["id"], rows[2]["id"]) == (pending, pending)
    assert (rows[4]["id"], rows[6]["id"]) == (rows[0]["id"], rows[5]["id"])
    group = [row for row in await do.claim(queue) if row["group_key"] == "g"]
    assert [json.loads(row["event"])["n"] for row in group] == [0, 1], "a group keeps the order given"
    assert [row["max_attempts"] for row in group] == [3, 7], "a claim says the maximum that holds"

    again = await enqueue_jobs(queue, [{"kind": "job", "item_key": "new"}, batch[1]], "replace")
    assert [row["duplicate"] for row in again] == [False, True]
    assert await enqueue_jobs(queue, []) == []


LONG = "z" * 201
HASHED = "sha256:" + hashlib.sha256(LONG.encode()).hexdigest()


@pytest.mark.parametrize(
    "batches",
    [
        [
            [("a1", "kind-2"), ("a2", "job"), ("a3", "kind-1")],
            [("b1", "kind-1"), ("b2", "job"), ("b3", "kind-2")],
        ],
        [[("t", "job"), ("u", "job"), (LONG, "job")], [(HASHED, "job"), ("sz", "job"), ("t", "job")]],
    ],
    ids=["new kinds", "bounded keys"],
)
async def test_overlapping_batches_do_not_deadlock(queue: Connection, connect: Connect, batches: Any) -> None:
    """Another transaction stops both in the middle, where each used to have the lock that the other needed next."""
    holder = await connect()
    await do.enqueue(queue, "job")
    held = holder.transaction()
    await held.start()
    await enqueue_jobs(holder, [{"kind": "job", "item_key": batch[1][0]} for batch in batches])
    storing = []
    for batch in batches:
        connection, jobs = await connect(), [{"kind": kind, "item_key": key} for key, kind in batch]
        storing.append(asyncio.create_task(enqueue_jobs(connection, jobs)))
        await do.waits_for_lock(queue, connection)
    await held.rollback()
    stored = {row["id"] for rows in await asyncio.gather(*storing) for row in rows}
    assert len(stored) == len({HASHED if key == LONG else key for batch in batches for key, _ in batch})


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["skip", "replace", "earliest"])
async def test_racing_batches_store_a_job_once(queue: Connection, connect: Connect, mode: str) -> None:
    chance = Random(7)
    keys = [str(number) for number in range(40)]

    async def produce(connection: Connection) -> None:
        for _ in range(8):
            jobs = [
                {"kind": f"kind-{int(key) % 9}", "item_key": key, "dedupe_key": key, "group_key": key[-1]}
                for key in chance.sample(keys, 20)
            ]
            rows = await enqueue_jobs(connection, jobs, mode)
            assert len({row["id"] for row in rows}) == 20

    await asyncio.gather(*[produce(await connect()) for _ in range(4)])
    assert await queue.fetchval("select count(*) from agent.event") == len(keys)
    heads = await queue.fetchval("select count(*) from agent.event where head")
    assert heads == len({key[-1] for key in keys})


async def test_the_changes_of_an_event_are_bounded(queue: Connection) -> None:
    identity = await do.enqueue(queue, item_key="k")
    await queue.execute(
        "update agent.event set changes = (select jsonb_agg(jsonb_build_object('action', 'old', 'nth', n"
        ", 'at', agent.clock())) from generate_series(1, 500) as n)"
    )
    for number in range(3):
        await do.enqueue(queue, item_key="k", on_duplicate="replace", enqueued_by=f"p{number}")
    row = await do.event_of(queue, identity)
    changes = json.loads(row["changes"])
    assert [change.get("nth") for change in changes[:10]] == list(range(1, 11))
    assert (changes[10]["action"], changes[10]["count"]) == ("dropped", 500 + 3 - 50)
    assert [change.get("nth") for change in changes[11:-3]] == list(range(464, 501))
    assert [change["by"] for change in changes[-3:]] == ["p0", "p1", "p2"]
    assert "at" in changes[10]


async def test_a_schedule_is_found_by_its_key_and_moved(queue: Connection) -> None:
    """One whose lease ran out is pending again. Its old claim ends when it is rescheduled."""
    at = await queue.fetchval("select agent.clock() + interval '1 hour'")
    identity = await do.enqueue(queue, item_key="welcome:1", run_at=at)
    assert await reschedule(queue, "welcome:1", "2 hours") == "rescheduled"
    await do.advance(queue, timedelta(hours=1, minutes=55))
    assert await do.claim(queue) == []
    assert await reschedule(queue, "welcome:1", "-1 hour") == "rescheduled"
    (row,) = await do.claim(queue)
    assert row["id"] == identity
    assert await reschedule(queue, "welcome:1", "1 hour") == "running"
    assert await reschedule(queue, "welcome:2", "1 hour") is None
    await do.advance(queue, TEN_MINUTES)
    assert await reschedule(queue, "welcome:1", "1 hour") == "rescheduled"
    assert await do.complete(queue, pair(row)) == ["stale"]
    stored = await do.event_of(queue, identity)
    assert (stored["claimed_by"], stored["attempts"]) == (None, 1)
    for at in ("infinity", "-infinity", None):
        with pytest.raises(asyncpg.InvalidParameterValueError, match="cannot be rescheduled"):
            await queue.fetchval("select agent.reschedule_event('welcome:1', $1::text::timestamptz)", at)


async def test_a_requeued_event_has_all_attempts_and_gives_way_to_its_successor(queue: Connection) -> None:
    identity = await do.insert(queue, envelope("Ev1"))
    for _ in range(3):
        (row,) = await do.claim(queue, "slack.app_mention")
        await do.fail(queue, pair(row))
    assert await requeue(queue, identity, identity) == [identity]
    assert await do.ended(queue, identity) is None
    (again,) = await do.claim(queue, "slack.app_mention")
    assert (again["id"], again["attempts"], again["claim"]) == (identity, 1, 4)
    assert len(json.loads(again["errors"])) == 3
    assert await do.complete(queue, pair(row)) == ["stale"]
    assert await do.insert(queue, envelope("Ev1")) == identity
    identity = await do.enqueue(queue, item_key="i")
    await do.complete(queue, pair((await do.claim(queue))[0]))
    successor = await do.enqueue(queue, item_key="i")
    assert await requeue(queue, identity) == []
    assert (await do.ending(queue, identity))[0] == "completed"
    assert await do.live(queue, successor) is not None


async def test_an_expired_event_is_requeued_without_its_deadline(queue: Connection) -> None:
    identity = await do.enqueue(queue, item_key="i", deadline=await queue.fetchval("select agent.clock()"))
    await queue.execute("select agent.delete_expired_events()")
    assert (await do.ending(queue, identity))[0] == "expired"
    assert await requeue(queue, identity, 999_999_999) == [identity]
    assert await queue.fetchval("select agent.delete_expired_events()") == 0, (
        "its deadline is past; it has a new life"
    )
    assert [row["id"] for row in await do.claim(queue)] == [identity]


async def test_operators_see_every_event_in_one_view_and_a_schedule_queue(queue: Connection) -> None:
    later = await queue.fetchval("select clock_timestamp() + interval '1 hour'")
    for kind in ("pending", "scheduled", "running", "completed", "failed", "cancelled"):
        await do.enqueue(queue, kind, run_at=later if kind == "scheduled" else None, item_key=kind)
    rows = {row["kind"]: pair(row) for row in await do.claim(queue, "running", "completed", "failed")}
    await do.complete(queue, rows["completed"])
    await do.fail(queue, rows["failed"], final=True)
    await queue.execute("select agent.cancel_event('cancelled')")
    jobs = await queue.fetch("select kind, status, error from agent.job")
    assert all(row["kind"] == row["status"] for row in jobs)
    assert len(jobs) == 6
    assert {row["error"] for row in jobs} == {None, "attempt with claim 1"}
    stats = await queue.fetch("select kind, pending, scheduled, running from agent.queue_stats()")
    counted = {row["kind"]: tuple(row)[1:] for row in stats}
    expected = {"pending": (1, 0, 0), "scheduled": (0, 1, 0), "running": (0, 0, 1)}
    assert {kind: counts for kind, counts in counted.items() if any(counts)} == expected
    await do.enqueue(queue, item_key="welcome:1", payload='{"message": "hello"}', enqueued_by="blog")
    (row,) = await do.claim(queue)
    await do.complete(queue, pair(row))
    item = await do.only_row(queue, "select * from agent.schedule_queue where item_key = 'welcome:1'")
    assert set(item.keys()) >= {"schedule_queue_item_id", "schedule_on", "claimed_by", "group_key"}
    assert (item["item_key"], item["enqueued_by"], item["dequeued_by"]) == ("welcome:1", "blog", "w1")
    assert (item["redeliver_count"], json.loads(item["data"])) == (0, {"message": "hello"})
    assert item["enqueued_on"] <= item["claimed_on"] <= item["dequeued_on"]


async def paged(queue: Connection, given: str, most: int = 1000) -> list[int]:
    """Return the ids of history's pages, newest first, until so many."""
    pages: list[int] = []
    after: tuple[Any, Any] = (None, None)
    listed = f"select id, finished_at from agent.list_jobs({given}, _after => $1, _after_id => $2)"
    while len(pages) < most and (rows := await queue.fetch(listed, *after)):
        pages += [row["id"] for row in rows]
        after = rows[-1]["finished_at"], rows[-1]["id"]
    return pages


async def test_a_page_costs_the_same_however_long_history_is(server: Server, template: str) -> None:
    """This holds for every filter, and all pages together have exactly the matching events.

    The database is new: reads walk over the dead rows of other tests until a vacuum removes them.
    """
    async with server.fresh(template) as name, connected(server.uri(name)) as history:
        await history.execute(HISTORY)
        for filters, wanted in FILTERS.items():
            assert await fewest_pages(history, f"select * from agent.list_jobs({filters})") < 600, filters
            pages = await paged(history, filters, 60)
            ended = f"select id from agent.event_hist where {wanted}"
            expected = await history.fetch(f"{ended} order by finished_at desc, id desc limit 60")
            assert pages == [row["id"] for row in expected], filters


async def test_pages_go_back_through_history_wherever_an_events_own_time_lies(queue: Connection) -> None:
    """An event may be years older than its end, or be cancelled long before its time."""
    await queue.execute(
        "insert into agent.kind (kind) values ('job');"
        "insert into agent.event_hist (id, event_ts, attempts, vt, claimed, event, kind, group_key, head, lane"
        ", enqueued_at, enqueued_by, retrying, errors, outcome, finished_at)"
        " select row_number() over (), moment + own, 0, moment, '{}', '{}', 'job', 'g', true, 0"
        ", moment, 'test', false, '[]', 'failed', moment"
        " from unnest(array[0, 0.5, 2, 20, 29, 31, 40, 400]) as days"
        ", lateral (select now() - days * interval '1 day' as moment) as ended"
        ", unnest(array[interval '0', '-3 days', '3 days', '-8 days', '8 days', '-3 years', '3 years']) as own"
    )
    expected = await queue.fetch("select id from agent.event_hist order by finished_at desc, id desc")
    for key in ("null", "'g'"):
        assert await paged(queue, f"_key => {key}, _limit => 5") == [row["id"] for row in expected]


HISTORY = """
alter table agent.event_hist set (autovacuum_enabled = off);
insert into agent.kind (kind) select 'kind' || n from generate_series(0, 2) as n;
insert into agent.event_hist
( attempts, vt, claimed, enqueued_at, enqueued_by, retrying, errors, head, lane, id, event_ts, event
, kind, item_key, group_key, dedupe_key, outcome, finished_at)
select 1, now(), '{}', now(), 'test', false, '[]', true, 0, n, timestamptz '2024-01-01' + n * interval '1 second', '{}'
, 'kind' || n % 3, 'item' || n, 'group' || n % 500, 'dedupe' || n % 500
, case when n % 1000 = 0 then 'failed' when n % 1000 = 1 then 'expired' else 'completed' end
, timestamptz '2024-01-01' + n / 7 * interval '1 second' from generate_series(1, 30000) as n;
-- A second chunk of the hypertable: pages have to merge chunks.
insert into agent.event_hist
select (jsonb_populate_record(h, '{"id": 0, "event_ts": "2022-01-01", "finished_at": "2022-01-01"}')).*
from agent.event_hist as h where id = 1;
analyze agent.event_hist;
"""
FILTERS = {
    "_limit => 20": "true",
    "'{failed}'": "outcome = 'failed'",
    "'{failed,expired,running}', '{kind0,kind1}'": "outcome in ('failed', 'expired') and kind in ('kind0', 'kind1')",
    "_kinds => '{kind2}'": "kind = 'kind2'",
    "_kinds => '{kind2, unknown}', _until => '2024-01-01 00:10:00+00'": (
        "kind = 'kind2' and finished_at < '2024-01-01 00:10:00+00'"
    ),
    "_key => 'group7'": "group_key = 'group7'",
    "'{completed}', '{kind1}', 'dedupe8'": "outcome = 'completed' and dedupe_key = 'dedupe8' and kind = 'kind1'",
    "_key => 'item4711'": "item_key = 'item4711'",
    "_since => '2024-01-01 00:20:00+00'": "finished_at >= '2024-01-01 00:20:00+00'",
}


async def test_a_live_job_is_listed_by_each_of_its_keys_in_every_state(queue: Connection) -> None:
    async def listed() -> list[list[int]]:
        return [
            [row["id"] for row in await queue.fetch("select id from agent.list_jobs(_key => $1)", key)]
            for key in ("i", "g", "d")
        ]

    identity = await do.enqueue(queue, item_key="i", dedupe_key="d", group_key="g")
    assert await listed() == [[identity]] * 3
    for settles in (do.release, do.fail):
        (row,) = await do.claim(queue)
        assert await listed() == [[identity]] * 3
        assert await settles(queue, pair(row)) == ["done"]
        assert await listed() == [[identity]] * 3
    (row,) = await do.claim(queue)
    successor = await do.enqueue(queue, dedupe_key="d", group_key="g", run_at=row["vt"])
    await do.advance(queue, timedelta(hours=1))
    assert await listed() == [[identity], [successor, identity], [successor, identity]]
    assert await queue.fetch("select from agent.list_jobs('{scheduled}', null, 'i')") == []


@pytest.mark.parametrize("call", ["enqueue('job', '{}')", 'insert_event(\'{"type": "app_mention"}\')'])
async def test_a_clock_that_jumps_back_in_a_call_gives_one_time(connection: Connection, call: str) -> None:
    """Else an event would wait for an hour, and the runbook would not find it by its ``enqueued_at``."""
    await connection.execute("create sequence public.reading")
    await connection.execute(
        "create or replace function agent.clock() returns timestamptz language sql volatile parallel safe"
        " return pg_catalog.clock_timestamp()"
        " + case when pg_catalog.nextval('public.reading') = 1 then interval '1 hour' else interval '0' end"
    )
    await connection.fetchval(f"select agent.{call}")
    assert await connection.fetchval("select vt = enqueued_at from agent.event")
