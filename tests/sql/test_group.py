"""The events of a group go to one worker at a time, together and in order, and always have a head."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from surelane.calls import Connection
from surelane.jobs import Continuation, Job
from surelane.queue import Queue
from tests.sql import queue_steps as do
from tests.sql.conftest import Connect
from tests.sql.queue_steps import TEN_MINUTES, envelope, pair


async def three(queue: Connection, **named: Any) -> list[int]:
    """Enqueue a group g of three jobs, in order."""
    return [await do.enqueue(queue, group_key="g", **named) for _ in range(3)]


async def ids(queue: Connection, *kinds: str) -> list[int]:
    """Claim, and return the ids in order."""
    return [row["id"] for row in await do.claim(queue, *kinds)]


async def test_a_group_has_one_head_and_one_lane_and_is_claimed_whole_and_in_order(queue: Connection) -> None:
    group, alone = await three(queue), await do.enqueue(queue)
    assert await do.heads(queue, "g") == group[:1]
    assert await queue.fetchval("select count(distinct lane) from agent.event where group_key = 'g'") == 1
    assert await queue.fetchval("select bool_and(head) from agent.event where group_key is null")
    assert await ids(queue) == [*group, alone]
    late = await do.enqueue(queue, group_key="g")
    assert await ids(queue) == [], "while the group runs, no other claim gets one of its events"
    assert await do.claim_one(queue) is None
    await do.complete(queue, *((identity, 1) for identity in group))
    assert await ids(queue) == [late]


async def test_a_batch_never_splits_a_group_and_never_exceeds_its_bound(queue: Connection) -> None:
    """The head comes first, and then the events that happened first."""
    head, *members = [await do.enqueue(queue, group_key="g") for _ in range(103)]
    await queue.execute("update agent.event set event_ts = event_ts - id * interval '1 hour' where not head")
    members.reverse()
    assert [row["id"] for row in await do.claim(queue, limit=2)] == [*members[:100], head]
    await do.complete(queue, *((identity, 1) for identity in (*members[:100], head)))
    assert await ids(queue) == members[100:]


async def test_a_retry_blocks_its_group_and_a_lapsed_group_is_tried_head_alone(queue: Connection) -> None:
    """Only the event that kills its worker exhausts its attempts. That of the others does not count."""
    first, second, third = await three(queue)
    rows = {row["id"]: row for row in await do.claim(queue)}
    await do.complete(queue, pair(rows[first]))
    await do.fail(queue, pair(rows[second]), retry_in=timedelta(minutes=1))
    await do.complete(queue, pair(rows[third]))
    waiting = await do.enqueue(queue, group_key="g")
    assert await ids(queue) == []
    await do.advance(queue, timedelta(minutes=1))
    assert await ids(queue) == [second, waiting]
    await queue.execute("delete from agent.event")
    poison, *others = await three(queue)
    lapsed = await do.claim(queue)
    assert len(lapsed) == 3
    for attempt in (2, 3):
        await do.advance(queue, TEN_MINUTES)
        (row,) = await do.claim(queue)
        assert (row["id"], row["attempts"]) == (poison, attempt)
        assert await do.complete(queue, *map(pair, lapsed[1:])) == ["stale", "stale"]
    await do.advance(queue, TEN_MINUTES)
    assert await ids(queue) == []
    assert await do.sweep(queue) == 1
    assert await do.ending(queue, poison) == ("expired", "attempts_exhausted")
    assert [(row["id"], row["attempts"]) for row in await do.claim(queue)] == [
        (identity, 1) for identity in others
    ]


async def test_an_old_group_goes_in_sweeps_and_of_several_as_many_come_as_fit(queue: Connection) -> None:
    for _ in range(12):
        await do.enqueue(queue, group_key="g")
    await do.advance(queue, timedelta(hours=2))
    assert [await queue.fetchval("select agent.sweep_events(_limit => 5)") for _ in range(4)] == [5, 5, 2, 0]
    for name in "abc":
        for _ in range(4):
            await do.enqueue(queue, group_key=name)
    await do.enqueue(queue)
    counts = [len({row["group_key"] for row in await do.claim(queue, limit=5)}) for _ in range(2)]
    assert sum(counts) == 4
    assert await queue.fetchval("select count(*) from agent.event where claimed_by is not null") == 13


@pytest.mark.parametrize("which", ["head", "member", "all"])
async def test_deleting_by_hand_leaves_a_sound_group(queue: Connection, which: str) -> None:
    first, second, third = await three(queue)
    gone = {"head": [first], "member": [second], "all": [first, second, third]}[which]
    await queue.execute("delete from agent.event where id = any($1::int8[])", gone)
    assert await ids(queue) == [identity for identity in (first, second, third) if identity not in gone]
    assert len(await do.heads(queue, "g")) == (0 if which == "all" else 1)


async def test_a_sweep_heals_a_headless_group_and_truncating_leaves_a_sound_queue(queue: Connection) -> None:
    group = await three(queue)
    await queue.execute("update agent.event set head = false")
    assert await ids(queue) == []
    await queue.execute("select agent.sweep_events()")
    assert await ids(queue) == group
    await three(queue)
    await queue.execute("truncate agent.event")
    assert await ids(queue) == []
    successor = await do.enqueue(queue, group_key="g")
    assert await ids(queue) == [successor]


async def test_a_busy_head_makes_its_members_settle_later(queue: Connection, other: Connection) -> None:
    """While an insert into a group commits, the group's settles answer busy, keep their claims and are sent again."""
    await three(queue)
    rows = [pair(row) for row in await do.claim(queue)]
    async with other.transaction():
        newcomer = await do.enqueue(other, group_key="g")
        await other.execute("set constraints agent.member_joins immediate")
        assert await do.complete(queue, *rows) == ["busy"] * 3
    assert await do.complete(queue, *rows) == ["done"] * 3
    assert await ids(queue) == [newcomer]


@pytest.mark.slow
async def test_a_claim_reads_the_members_that_it_holds_alone(queue: Connection) -> None:
    """Also where statistics know of no members, as before the first analyze after a burst."""
    await queue.execute("select agent.enqueue('other') from generate_series(1, 5000)")
    await queue.execute("analyze agent.event")
    await queue.execute("select agent.enqueue('job', _group_key => 'crowded') from generate_series(1, 3000)")
    fetched = "select idx_tup_fetch from pg_stat_xact_user_tables where relid = 'agent.event'::regclass"
    async with queue.transaction():
        before = await queue.fetchval(fetched)
        assert len(await do.claim(queue, limit=10)) > 10
        assert await queue.fetchval(fetched) - before < 1000


KIND = "slack.app_mention"
IN_ORDER = ["Ev8", "Ev9", "Ev10", "Ev11"]
"""In the order in which they happened. The order of their keys is another."""


def in_thread(event_id: str, **inner: Any) -> str:
    """Return an event that happened at the second of its number, in one of two threads."""
    number = int(event_id.removeprefix("Ev"))
    ts = f"{1_700_000_000 + number}.000000"
    named = {"channel": "C1", "thread_ts": "1.1", "ts": ts, "event_ts": ts}
    return envelope(event_id, **(named | inner))


async def insert_batch(queue: Connection, *events: str) -> list[int]:
    rows = await queue.fetch("select id from agent.insert_events($1) order by ordinal", list(events))
    return [row["id"] for row in rows]


async def enqueue_batch(queue: Connection, jobs: list[Any], on_duplicate: str = "skip") -> list[int]:
    store = "select id from agent.enqueue_jobs($1, $2) order by ordinal"
    rows = await queue.fetch(store, json.dumps(jobs), on_duplicate)
    return [row["id"] for row in rows]


async def handed_over(queue: Connection) -> list[int]:
    """Claim one event at a time, the head alone, and complete it. Return the ids in that order."""
    ids = []
    while (row := await do.claim_one(queue)) is not None:
        ids.append(row["id"])
        await queue.execute("select agent.delete_event($1)", row["id"])
    return ids


@pytest.mark.parametrize("arrived", [IN_ORDER, IN_ORDER[::-1]], ids=["in order", "in reverse"])
async def test_a_batch_begins_with_what_happened_first(queue: Connection, arrived: list[str]) -> None:
    ids = await insert_batch(queue, *map(in_thread, arrived))
    in_order = [ids[arrived.index(key)] for key in IN_ORDER]
    assert await handed_over(queue) == in_order
    await queue.execute("select agent.rerun_events($1)", ids)
    assert await handed_over(queue) == in_order, "requeued"


async def test_events_without_a_time_come_in_the_order_of_their_arrival(queue: Connection) -> None:
    bodies = [in_thread(key, event_ts=None) for key in ("Ev9", "Ev10", "Ev8")]
    ids = await insert_batch(queue, *bodies)
    assert await handed_over(queue) == ids


async def test_a_claim_that_is_full_of_bytes_takes_the_first_events(queue: Connection) -> None:
    ids = await insert_batch(queue, *(in_thread(key, text="x" * 5000) for key in IN_ORDER))
    rows = await queue.fetch("select id from agent.claim_events($1, _most_bytes => 11000)", [KIND])
    assert {row["id"] for row in rows} == set(ids[:2])


@pytest.mark.usefixtures("patient")
async def test_a_claim_begun_during_an_insert_takes_the_first(queue: Connection, connect: Connect) -> None:
    """It looks later, when the batch is committed, and passes over rows that were stored after its moment."""
    await queue.execute("insert into agent.kind (kind) values ($1)", KIND)  # so no batch waits for that
    other, inserting = await connect(), await connect()
    blocker = other.transaction()
    await blocker.start()
    (_,) = await insert_batch(other, in_thread("Ev10", channel="C2"))
    batch = asyncio.create_task(insert_batch(inserting, *map(in_thread, ["Ev9", "Ev10", "Ev11"])))
    await do.waits_for_lock(queue, inserting)
    await queue.execute("update agent.test_clock set shift = '1 hour'")
    await blocker.rollback()
    ids = await batch
    await queue.execute("update agent.test_clock set shift = '0'")
    assert [row["id"] for row in await do.claim(queue, KIND)] == ids[:2]


@pytest.mark.parametrize("key", ["item_key", "dedupe_key"])
@pytest.mark.parametrize("on_duplicate", ["skip", "replace", "earliest"])
async def test_a_batch_of_jobs_begins_with_its_first(queue: Connection, key: str, on_duplicate: str) -> None:
    jobs = [{"kind": "job", "group_key": "g", key: name} for name in "cadb"]
    ids = await enqueue_batch(queue, jobs, on_duplicate)
    assert await handed_over(queue) == ids


async def test_a_batch_of_jobs_leaves_the_head_of_others_alone(queue: Connection) -> None:
    head = await do.enqueue(queue, group_key="g")
    later = {"run_at": (await queue.fetchval("select agent.clock() + interval '1 day'")).isoformat()}
    jobs = [{"kind": "job", "group_key": group, "item_key": group + name} for group in "gh" for name in "ba"]
    jobs[2] |= later
    ids = await enqueue_batch(queue, jobs)
    rows = await do.claim(queue)
    assert [row["id"] for row in rows] == [head, *ids[:2], ids[3]]


async def test_children_of_a_group_run_in_the_order_given(queue: Connection) -> None:
    children = [Job("job", {"name": name}, group_key="g", item_key=name) for name in "cadb"]
    await Queue(queue).fan_out(children, Continuation("then", group_key="h"))
    names = []
    while (row := await do.claim_one(queue)) is not None and row["kind"] == "job":
        names.append(row["item_key"])
        await queue.execute("select agent.delete_event($1)", row["id"])
    assert names == list("cadb")


async def test_a_batch_begins_with_its_first_without_a_head(queue: Connection, other: Connection) -> None:
    """The jobs join as members. Where the head left meanwhile, they find none as they commit."""
    head = await do.enqueue(queue, group_key="g")
    async with other.transaction():
        await other.execute("select agent.delete_event($1)", head)
        jobs = [{"kind": "job", "group_key": "g", "item_key": name} for name in "cadb"]
        batch = asyncio.create_task(enqueue_batch(queue, jobs))
        await do.waits_for_lock(other, queue)
    ids = await batch
    assert await handed_over(queue) == ids
    later = await queue.fetchval("select agent.clock() + interval '1 day'")
    await do.enqueue(queue, group_key="g", run_at=later)
    ids = await enqueue_batch(queue, jobs)
    assert await handed_over(queue) == ids


async def test_a_sweep_leaves_a_group_whose_retry_is_locked(queue: Connection, other: Connection) -> None:
    first, second, _ = [await do.enqueue(queue, group_key="g") for _ in range(3)]
    one, _, _ = await do.claim(queue)
    assert await do.fail(queue, pair(one), retry_in=timedelta(hours=1)) == ["done"]
    await queue.execute("update agent.event set attempts = 3 where id = $1", second)
    await do.advance(queue, timedelta(minutes=11))
    async with do.locked(other, first):
        assert await do.sweep(queue) == 0
        assert await do.claim(queue) == []
        assert await do.claim_one(queue) is None
    assert await do.sweep(queue) == 0
    assert await do.heads(queue, "g") == [first]
