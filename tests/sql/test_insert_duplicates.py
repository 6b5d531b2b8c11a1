"""An event sent repeatedly is stored once: while it waits, runs, is in history, or moves there or back."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from surelane.calls import Connection
from tests.sql.conftest import Connect
from tests.sql.queue_steps import (
    advance,
    all_done,
    claim,
    claim_one,
    claim_single,
    complete,
    ended,
    ending,
    envelope,
    insert,
    live,
    waits_for_lock,
)

BY_HAND = (
    "with moved as (delete from agent.event_hist where id = $1 returning id, event_ts, attempts, vt, claimed, event)"
    " insert into agent.event (id, event_ts, attempts, vt, claimed, event)"
    " select id, event_ts, 0, now(), claimed, event from moved"
)


async def finished(queue: Connection, event: str) -> int:
    """Insert an event, claim it and complete it."""
    identity = await insert(queue, event)
    claimed = await claim_single(queue)
    assert claimed["id"] == identity
    assert await complete(queue, (identity, len(claimed["claimed"]))) == ["done"]
    return identity


@pytest.mark.parametrize("event_ts", ["soon", None])
async def test_a_duplicate_without_a_time_finds_history_for_a_day(
    queue: Connection, event_ts: str | None
) -> None:
    identity = await finished(queue, envelope("Ev1", event_ts=event_ts))
    await advance(queue, timedelta(hours=24))
    assert await insert(queue, envelope("Ev1", event_ts=event_ts)) == identity


@pytest.mark.parametrize("kept", [True, False], ids=["committed", "rolled back"])
async def test_a_duplicate_waits_for_an_open_insert(queue: Connection, other: Connection, kept: bool) -> None:
    transaction = other.transaction()
    await transaction.start()
    first = await insert(other, envelope("Ev1"))
    second = asyncio.create_task(insert(queue, envelope("Ev1")))
    await waits_for_lock(other, queue)
    await (transaction.commit() if kept else transaction.rollback())
    assert (await second == first) is kept
    assert await queue.fetchval("select count(*) from agent.event") == 1


async def test_a_duplicate_waits_for_the_move_to_history(queue: Connection, other: Connection) -> None:
    identity = await insert(queue, envelope("Ev1"))
    (claimed,) = await claim(queue, "slack.app_mention")
    async with other.transaction():
        assert await complete(other, (identity, claimed["claim"])) == ["done"]
        duplicate = asyncio.create_task(insert(queue, envelope("Ev1")))
        await waits_for_lock(other, queue)
    assert await duplicate == identity
    assert await ending(queue, identity) == ("completed", None)
    assert await queue.fetchval("select count(*) from agent.event") == 0


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_inserting_above_read_committed_is_refused(queue: Connection, isolation: str) -> None:
    async with queue.transaction():
        await queue.execute(f"set transaction isolation level {isolation}")
        with pytest.raises(asyncpg.InvalidTransactionStateError, match="READ COMMITTED"):
            await queue.fetchval("select agent.insert_event($1)", envelope("Ev1"))


async def test_a_batch_gives_up_on_a_blocked_event_and_stores_nothing(
    queue: Connection, other: Connection
) -> None:
    async with other.transaction():
        await insert(other, envelope("Ev2"))
        with pytest.raises(asyncpg.LockNotAvailableError):
            await queue.fetch(
                "select * from agent.insert_events($1)", [envelope("Ev1"), envelope("Ev2"), envelope("Ev3")]
            )
    assert await queue.fetchval("select array_agg(item_key) from agent.event") == ["Ev2"]


async def insert_batch(queue: Connection, events: list[str]) -> list[int]:
    """Insert a batch. Try again after each lock timeout; a deadlock is an error."""
    while True:
        try:
            rows = await queue.fetch("select id from agent.insert_events($1) order by ordinal", events)
        except asyncpg.LockNotAvailableError:
            continue
        return [row["id"] for row in rows]


async def test_batches_in_any_order_do_not_deadlock(queue: Connection, connect: Connect) -> None:
    """They may share events, groups and new kinds."""
    assert await queue.fetchval("select count(*) from agent.kind") == 0
    events = [
        envelope(f"Ev{number}", type=f"kind{number}", channel=f"C{number % 7}", ts="1.1")
        for number in range(40)
    ]
    others = [await connect() for _ in range(4)]
    batches = (events, events[::-1], events[20:] + events[:20], events[::2] + events[1::2])
    answers = await all_done(
        *(insert_batch(other, batch) for other, batch in zip(others, batches, strict=True))
    )
    assert len({identity for ids in answers for identity in ids}) == len(events)


async def test_an_event_moved_back_by_hand_is_processed_again(queue: Connection) -> None:
    identity = await finished(queue, envelope("Ev1"))
    await queue.execute(BY_HAND, identity)
    claimed = await claim_single(queue)
    assert (claimed["id"], claimed["attempts"], len(claimed["claimed"])) == (identity, 1, 2)
    assert await complete(queue, (identity, 1)) == ["stale"]
    assert await complete(queue, (identity, 2)) == ["done"]


async def test_an_event_copied_back_by_hand_leaves_history_and_can_end_again(queue: Connection) -> None:
    identity = await finished(queue, envelope("Ev1"))
    await queue.execute(
        "insert into agent.event (id, event_ts, claimed, event)"
        " select id, event_ts, claimed, event from agent.event_hist where id = $1",
        identity,
    )
    assert await ended(queue, identity) is None
    assert await claim_one(queue) is not None
    await queue.execute("select agent.delete_event($1)", identity)
    assert await ending(queue, identity) == ("completed", None)


async def test_requeueing_what_is_live_under_another_copy_changes_nothing(queue: Connection) -> None:
    """An id that is both in the queue and in history does not change, and requeueing it returns."""
    identity = await finished(queue, envelope("Ev1"))
    await queue.execute(BY_HAND, identity)
    await queue.execute(
        "insert into agent.event_hist (id, event_ts, attempts, vt, claimed, event, kind, item_key, head, lane"
        ", enqueued_at, enqueued_by, retrying, errors, outcome) select id, event_ts, attempts, vt, claimed, event, kind"
        ", item_key, head, lane, enqueued_at, enqueued_by, retrying, errors, 'completed'"
        " from agent.event where id = $1",
        identity,
    )
    assert await queue.fetch("select agent.rerun_events($1)", [identity]) == []
    assert await live(queue, identity) is not None
