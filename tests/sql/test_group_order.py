"""What enters a group in one transaction is handed over in order, even to a claim that takes less than the group."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from surelane.calls import Connection
from surelane.jobs import Continuation, Job
from surelane.queue import Queue
from tests.sql.conftest import Connect
from tests.sql.queue_steps import (
    advance,
    claim,
    claim_one,
    enqueue,
    envelope,
    fail,
    heads,
    pair,
    sweep,
    waits_for_lock,
)

KIND = "slack.app_mention"
IN_ORDER = ["Ev8", "Ev9", "Ev10", "Ev11"]
"""In the order in which they happened. The order of their keys is another."""


def in_thread(event_id: str, **inner: Any) -> str:
    """Return an event that happened at the second of its number, in one of two threads."""
    number = int(event_id.removeprefix("Ev"))
    named = {"channel": "C1", "ts": "1.1", "event_ts": f"{1_700_000_000 + number}.000000"}
    return envelope(event_id, **(named | inner))


async def insert_batch(queue: Connection, *events: str) -> list[int]:
    rows = await queue.fetch("select id from agent.insert_events($1) order by ordinal", list(events))
    return [row["id"] for row in rows]


async def enqueue_batch(
    queue: Connection, jobs: list[dict[str, Any]], on_duplicate: str = "skip"
) -> list[int]:
    rows = await queue.fetch(
        "select id from agent.enqueue_jobs($1, $2) order by ordinal", json.dumps(jobs), on_duplicate
    )
    return [row["id"] for row in rows]


async def handed_over(queue: Connection) -> list[int]:
    """Claim one event at a time, the head alone, and complete it. Return the ids in that order."""
    ids = []
    while (row := await claim_one(queue)) is not None:
        ids.append(row["id"])
        await queue.execute("select agent.delete_event($1)", row["id"])
    return ids


@pytest.mark.parametrize("arrived", [IN_ORDER, IN_ORDER[::-1]], ids=["in order", "in reverse"])
async def test_a_batch_of_events_begins_with_what_happened_first(
    queue: Connection, arrived: list[str]
) -> None:
    ids = dict(zip(arrived, await insert_batch(queue, *map(in_thread, arrived)), strict=True))
    assert await handed_over(queue) == [ids[key] for key in IN_ORDER]


async def test_events_without_a_time_come_in_the_order_of_their_arrival(queue: Connection) -> None:
    bodies = [in_thread(key, event_ts=None) for key in ("Ev9", "Ev10", "Ev8")]
    ids = await insert_batch(queue, *bodies)
    assert await handed_over(queue) == ids


async def test_a_claim_that_is_full_of_bytes_takes_the_first_events(queue: Connection) -> None:
    ids = await insert_batch(queue, *(in_thread(key, text="x" * 5000) for key in IN_ORDER))
    rows = await queue.fetch(
        "select id from agent.claim_events($1, 100, 3, '10m', 'w1', null, null, 11000)", [KIND]
    )
    assert {row["id"] for row in rows} == set(ids[:2])


@pytest.mark.usefixtures("patient")
async def test_a_claim_that_read_the_clock_during_the_insert_takes_the_first_events(
    queue: Connection, connect: Connect
) -> None:
    """It looks later, when the batch is committed, and passes over rows that were stored after its moment."""
    other, inserting = await connect(), await connect()
    blocker = other.transaction()
    await blocker.start()
    (_,) = await insert_batch(other, in_thread("Ev10", channel="C2"))
    batch = asyncio.create_task(insert_batch(inserting, *map(in_thread, ["Ev9", "Ev10", "Ev11"])))
    await waits_for_lock(queue, inserting)
    await queue.execute("update agent.test_clock set shift = '1 hour'")
    await blocker.rollback()
    ids = await batch
    await queue.execute("update agent.test_clock set shift = '0'")
    assert [row["id"] for row in await claim(queue, KIND)] == ids[:2]


@pytest.mark.parametrize("key", ["item_key", "dedupe_key"])
@pytest.mark.parametrize("on_duplicate", ["skip", "replace", "earliest"])
async def test_a_batch_of_jobs_begins_with_its_first(queue: Connection, key: str, on_duplicate: str) -> None:
    jobs = [{"kind": "job", "group_key": "g", key: name} for name in "cadb"]
    ids = await enqueue_batch(queue, jobs, on_duplicate)
    assert await handed_over(queue) == ids


async def test_a_batch_of_jobs_leaves_the_head_of_others_alone(queue: Connection) -> None:
    head = await enqueue(queue, group_key="g")
    later = {"run_at": (await queue.fetchval("select agent.clock() + interval '1 day'")).isoformat()}
    jobs = [{"kind": "job", "group_key": group, "item_key": group + name} for group in "gh" for name in "ba"]
    jobs[2] |= later
    ids = await enqueue_batch(queue, jobs)
    rows = await claim(queue)
    assert [row["id"] for row in rows] == [head, *ids[:2], ids[3]]


async def test_requeued_events_begin_with_the_one_that_happened_first(queue: Connection) -> None:
    ids = await insert_batch(queue, *map(in_thread, IN_ORDER))
    for identity in ids:
        await queue.execute("select agent.delete_event($1)", identity)
    await queue.execute("select agent.rerun_events($1)", ids)
    assert await handed_over(queue) == ids


async def test_children_of_a_group_run_in_the_order_given(queue: Connection) -> None:
    children = [Job("job", {"name": name}, group_key="g", item_key=name) for name in "cadb"]
    await Queue(queue).fan_out(children, Continuation("then", group_key="h"))
    names = []
    while (row := await claim_one(queue)) is not None and row["kind"] == "job":
        names.append(row["item_key"])
        await queue.execute("select agent.delete_event($1)", row["id"])
    assert names == list("cadb")


async def test_a_batch_of_jobs_begins_with_its_first_where_the_head_left_meanwhile(
    queue: Connection, other: Connection
) -> None:
    """Its jobs join as members, and find no head as they commit."""
    head = await enqueue(queue, group_key="g")
    async with other.transaction():
        await other.execute("select agent.delete_event($1)", head)
        jobs = [{"kind": "job", "group_key": "g", "item_key": name} for name in "cadb"]
        batch = asyncio.create_task(enqueue_batch(queue, jobs))
        await waits_for_lock(other, queue)
    ids = await batch
    assert await handed_over(queue) == ids


async def test_a_batch_of_jobs_begins_with_its_first_where_the_head_is_scheduled(queue: Connection) -> None:
    later = await queue.fetchval("select agent.clock() + interval '1 day'")
    await enqueue(queue, group_key="g", run_at=later)
    jobs = [{"kind": "job", "group_key": "g", "item_key": name} for name in "cadb"]
    ids = await enqueue_batch(queue, jobs)
    assert await handed_over(queue) == ids


async def test_a_sweep_leaves_a_group_whose_retry_is_locked(queue: Connection, other: Connection) -> None:
    first, second, _ = [await enqueue(queue, group_key="g") for _ in range(3)]
    one, _, _ = await claim(queue)
    assert await fail(queue, pair(one), retry_in=timedelta(hours=1)) == ["done"]
    await queue.execute("update agent.event set attempts = 3 where id = $1", second)
    await advance(queue, timedelta(minutes=11))
    async with other.transaction():
        await other.execute("select from agent.event where id = $1 for update", first)
        assert await sweep(queue) == 0
        assert await claim(queue) == []
        assert await claim_one(queue) is None
    assert await sweep(queue) == 0
    assert await heads(queue, "g") == [first]
