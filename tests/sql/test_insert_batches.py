"""One statement stores a batch and keeps every promise of single inserts. What is sent again is stored once."""

import asyncio
import json
from contextlib import suppress
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from tests.sql import queue_steps as do
from tests.sql.conftest import Connect
from tests.sql.queue_steps import envelope, pair

KIND = "slack.app_mention"


def in_thread(event_id: str, thread: str, **inner: Any) -> str:
    """Return an event whose group is ``T1:`` and the thread."""
    return envelope(event_id, channel=thread, channel_type="im", **inner)


async def insert_batch(queue: Connection, *events: str) -> list[tuple[int, bool]]:
    """Insert a batch; return the id of each event, and whether it is a duplicate."""
    rows = await queue.fetch("select * from agent.insert_events($1) order by ordinal", list(events))
    return [(row["id"], row["duplicate"]) for row in rows]


async def finished(queue: Connection, event: str) -> int:
    """Insert an event, claim it and complete it."""
    identity = await do.insert(queue, event)
    claimed = await do.claim_single(queue)
    assert await do.complete(queue, (identity, len(claimed["claimed"]))) == ["done"]
    return identity


async def rows_stored(queue: Connection) -> list[dict[str, Any]]:
    """Return all rows, without values that differ per insert, such as a replaced ``event_ts``."""
    rows = await queue.fetch("select * from agent.event order by item_key")
    moments = ("id", "lane", "vt", "enqueued_at", "event_ts")
    started = await queue.fetchval("select agent.clock() - interval '1 hour'")
    return [
        {name: value for name, value in row.items() if name not in moments}
        | {"event_ts": row["event_ts"] if row["event_ts"] < started else None}
        for row in rows
    ]


async def test_one_statement_stores_all_that_is_new_as_single_inserts_do(queue: Connection) -> None:
    """Members of new and of existing groups are included. Only duplicates take the general way."""
    events = [
        envelope("Ev1", channel="C1", ts="1.1"),
        envelope("Ev2", type="message", channel_type="im", channel="D1", event_ts="1700000000.5"),
        envelope("Ev3", type="team_join", event_ts="soon"),
        json.dumps({"type": "app_mention", "event_ts": "1700000000.000100", "text": "bare"}),
        json.dumps({"command": "/deploy", "trigger_id": "1.2"}),
    ]
    for event in events:
        await do.insert(queue, event)
    singly = await rows_stored(queue)
    await queue.execute("delete from agent.event")
    await insert_batch(queue, *events)
    assert await rows_stored(queue) == singly
    assert len(singly) == len(events)
    await queue.execute("delete from agent.event")
    await do.insert(queue, in_thread("Ev1", "D1"))
    threads = (("Ev3", "D2"), ("Ev2", "D2"), ("Ev4", "D1"), ("Ev1", "D1"))
    batch = [envelope("Ev9"), *(in_thread(*each) for each in threads), envelope("Ev9")]
    stored = await queue.fetchval(
        "select agent.store_new_events($1, $2, null, null"
        ", array(select agent.event_kind(e) from unnest($2::jsonb[]) as e), '{}')",
        range(1, len(batch) + 1),
        batch,
    )
    assert sorted(stored) == [1, 2, 3, 4]


@pytest.mark.usefixtures("patient")
async def test_a_batch_waits_for_events_in_the_order_in_which_they_happened(
    queue: Connection, other: Connection
) -> None:
    events = [in_thread(f"Ev{nth}", "C1", event_ts=f"1700000000.{nth}") for nth in range(3)]
    await do.insert(queue, events[0])
    async with other.transaction():
        first = await do.insert(other, events[1])
        batch = asyncio.create_task(insert_batch(queue, events[2], events[1]))
        await do.waits_for_lock(other, queue)
        second = await do.insert(other, events[2])  # a deadlock if the batch has it
    assert await batch == [(second, True), (first, True)]


async def test_each_finds_its_duplicate_wherever_that_is(queue: Connection) -> None:
    past = await finished(queue, envelope("Ev1"))
    running = await do.insert(queue, envelope("Ev2"))
    assert await do.claim_one(queue) is not None
    waiting = await do.insert(queue, envelope("Ev3"))
    answers = await insert_batch(queue, *(envelope(f"Ev{number}") for number in (4, 1, 2, 3, 4, 1, 5)))
    new, other = answers[0][0], answers[-1][0]
    ids = [new, past, running, waiting, new, past, other]
    assert answers == list(zip(ids, [False, True, True, True, True, True, False], strict=True))
    assert await queue.fetchval("select count(*) from agent.event") == 4


@pytest.mark.usefixtures("patient")
async def test_a_duplicate_waits_for_its_move_to_history(queue: Connection, connect: Connect) -> None:
    identity = await do.insert(queue, envelope("Ev2"))
    (row,) = await do.claim(queue, KIND)
    other, single = await connect(), await connect()
    async with other.transaction():
        assert await do.complete(other, pair(row)) == ["done"]
        batch = asyncio.create_task(insert_batch(queue, *(envelope(f"Ev{number}") for number in (1, 2, 3))))
        alone = asyncio.create_task(do.insert(single, envelope("Ev2")))
        for waiting in (queue, single):
            await do.waits_for_lock(other, waiting)
    first, found, third = await batch
    assert (first[1], found, third[1], await alone) == (False, (identity, True), False, identity)
    assert await do.ending(queue, identity) == ("completed", None)


@pytest.mark.usefixtures("patient")
async def test_batches_beside_moves_to_history_store_all_once(queue: Connection, connect: Connect) -> None:
    others = [await connect() for _ in range(3)]
    for turn in range(12):
        events = [in_thread(f"Ev{turn}-{number}", f"D{number % 3}") for number in range(6)]
        ids = [identity for identity, _ in await insert_batch(queue, *events)]
        rows = await do.claim(queue, KIND)
        answers, *found = await do.all_done(
            do.complete(queue, *map(pair, rows)), *(insert_batch(other, *events) for other in others)
        )
        assert found == [[(identity, True) for identity in ids]] * 3
        busy = [pair(row) for row, answer in zip(rows, answers, strict=True) if answer == "busy"]
        assert not busy or set(await do.complete(queue, *busy)) == {"done"}
    assert await queue.fetchval("select count(*) from agent.event") == 0


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("scheduled", [False, True], ids=["waiting head", "head that yields"])
async def test_a_waiting_batch_locks_one_group(queue: Connection, other: Connection, scheduled: bool) -> None:
    """Otherwise it would deadlock with a transaction that has locked this group and waits for a later one."""
    later = await queue.fetchval("select agent.clock() + interval '1 day'")
    head = await do.enqueue(queue, group_key="T1:D1", run_at=later if scheduled else None)
    async with asyncio.timeout(60):
        async with other.transaction():
            if scheduled:
                await do.enqueue(other, group_key="T1:D1")
                await other.execute("set constraints agent.member_joins immediate")  # takes over at once
            else:
                await other.execute("select from agent.event where id = $1 for update", head)
            batch = asyncio.create_task(insert_batch(queue, in_thread("Ev2", "D2"), in_thread("Ev1", "D1")))
            await do.waits_for_lock(other, queue)
            await do.enqueue(other, group_key="T1:D2")
        answers = await batch
    assert [duplicate for _, duplicate in answers] == [False, False]


BY_HAND = (
    "with moved as (delete from agent.event_hist where id = $1 returning id, event_ts, attempts, vt, claimed, event)"
    " insert into agent.event (id, event_ts, attempts, vt, claimed, event)"
    " select id, event_ts, 0, now(), claimed, event from moved"
)


@pytest.mark.parametrize("event_ts", ["soon", None])
async def test_a_duplicate_without_a_time_is_found_for_a_day(queue: Connection, event_ts: str | None) -> None:
    identity = await finished(queue, envelope("Ev1", event_ts=event_ts))
    await do.advance(queue, timedelta(hours=24))
    assert await do.insert(queue, envelope("Ev1", event_ts=event_ts)) == identity


@pytest.mark.parametrize("kept", [True, False], ids=["committed", "rolled back"])
async def test_a_duplicate_waits_for_an_open_insert(queue: Connection, other: Connection, kept: bool) -> None:
    transaction = other.transaction()
    await transaction.start()
    first = await do.insert(other, envelope("Ev1"))
    second = asyncio.create_task(do.insert(queue, envelope("Ev1")))
    await do.waits_for_lock(other, queue)
    await (transaction.commit() if kept else transaction.rollback())
    assert (await second == first) is kept
    assert await queue.fetchval("select count(*) from agent.event") == 1


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
@pytest.mark.parametrize("call", ["insert_event('{}')", "insert_events('{\"{}\"}')"])
async def test_inserts_above_read_committed_are_refused(queue: Connection, isolation: Any, call: str) -> None:
    async with queue.transaction(isolation=isolation):
        with pytest.raises(asyncpg.InvalidTransactionStateError, match="READ COMMITTED"):
            await queue.execute(f"select agent.{call}")


async def test_a_batch_gives_up_on_a_blocked_event_entirely(queue: Connection, other: Connection) -> None:
    async with other.transaction():
        await do.insert(other, envelope("Ev2"))
        with pytest.raises(asyncpg.LockNotAvailableError):
            await queue.fetch(
                "select * from agent.insert_events($1)", [envelope("Ev1"), envelope("Ev2"), envelope("Ev3")]
            )
    assert await queue.fetchval("select array_agg(item_key) from agent.event") == ["Ev2"]


async def insert_again(queue: Connection, events: list[str]) -> list[tuple[int, bool]]:
    """Insert a batch. Try again after each lock timeout; a deadlock is an error."""
    while True:
        with suppress(asyncpg.LockNotAvailableError):
            return await insert_batch(queue, *events)


async def test_batches_in_any_order_do_not_deadlock(queue: Connection, connect: Connect) -> None:
    """They may share events, groups and new kinds."""
    assert await queue.fetchval("select count(*) from agent.kind") == 0
    events = [
        envelope(f"Ev{number}", type=f"kind{number}", channel=f"C{number % 7}", ts="1.1")
        for number in range(40)
    ]
    others = [await connect() for _ in range(4)]
    batches = (events, events[::-1], events[20:] + events[:20], events[::2] + events[1::2])
    answers = await do.all_done(*map(insert_again, others, batches))
    assert len({identity for ids in answers for identity, _ in ids}) == len(events)


async def test_an_event_that_was_moved_or_copied_back_by_hand_runs_again(queue: Connection) -> None:
    """Where an id is both in the queue and in history, it does not change, and requeueing it returns."""
    identity = await finished(queue, envelope("Ev1"))
    await queue.execute(BY_HAND, identity)
    claimed = await do.claim_single(queue)
    assert (claimed["id"], claimed["attempts"], len(claimed["claimed"])) == (identity, 1, 2)
    assert await do.complete(queue, (identity, 1)) == ["stale"]
    assert await do.complete(queue, (identity, 2)) == ["done"]
    identity = await finished(queue, envelope("Ev2"))
    await queue.execute(
        "insert into agent.event (id, event_ts, claimed, event)"
        " select id, event_ts, claimed, event from agent.event_hist where id = $1",
        identity,
    )
    assert await do.ended(queue, identity) is None
    assert await do.claim_one(queue) is not None
    await queue.execute("select agent.delete_event($1)", identity)
    assert await do.ending(queue, identity) == ("completed", None)
    identity = await finished(queue, envelope("Ev3"))
    await queue.execute(BY_HAND, identity)
    await queue.execute(
        "insert into agent.event_hist (id, event_ts, attempts, vt, claimed, event, kind, item_key, head, lane"
        ", enqueued_at, enqueued_by, retrying, errors, outcome) select id, event_ts, attempts, vt, claimed, event, kind"
        ", item_key, head, lane, enqueued_at, enqueued_by, retrying, errors, 'completed'"
        " from agent.event where id = $1",
        identity,
    )
    assert await queue.fetch("select agent.rerun_events($1)", [identity]) == []
    assert await do.live(queue, identity) is not None
