"""The events of a group go to one worker at a time, together and in order, and always have a head."""

from datetime import timedelta
from typing import Any

import pytest

from surelane.calls import Connection
from tests.sql.queue_steps import (
    TEN_MINUTES,
    advance,
    claim,
    claim_one,
    complete,
    ending,
    enqueue,
    fail,
    heads,
    pair,
    sweep,
)


async def three(queue: Connection, **named: Any) -> list[int]:
    """Enqueue a group g of three jobs, in order."""
    return [await enqueue(queue, group_key="g", **named) for _ in range(3)]


async def ids(queue: Connection, *kinds: str) -> list[int]:
    """Claim, and return the ids in order."""
    return [row["id"] for row in await claim(queue, *kinds)]


async def later(queue: Connection, by: timedelta) -> Any:
    return await queue.fetchval("select agent.clock() + $1::interval", by)


async def test_a_group_has_one_head_and_shares_its_lane(queue: Connection) -> None:
    first, *_ = await three(queue)
    await enqueue(queue)
    assert await heads(queue, "g") == [first]
    assert await queue.fetchval("select count(distinct lane) from agent.event where group_key = 'g'") == 1
    assert await queue.fetchval("select bool_and(head) from agent.event where group_key is null")


async def test_a_claim_takes_the_group_whole_and_in_order(queue: Connection) -> None:
    group = await three(queue)
    assert await ids(queue) == group
    late = await enqueue(queue, group_key="g")
    assert await ids(queue) == [], "while the group runs, no other claim gets one of its events"
    assert await claim_one(queue) is None
    await complete(queue, *((identity, 1) for identity in group))
    assert await ids(queue) == [late]


async def test_a_batch_never_splits_a_group_and_never_exceeds_its_bound(queue: Connection) -> None:
    """The head comes first, and then the events that happened first."""
    head, *members = [await enqueue(queue, group_key="g") for _ in range(103)]
    await queue.execute("update agent.event set event_ts = event_ts - id * interval '1 hour' where not head")
    members.reverse()
    assert [row["id"] for row in await claim(queue, limit=2)] == [*members[:100], head]
    await complete(queue, *((identity, 1) for identity in (*members[:100], head)))
    assert await ids(queue) == members[100:]


async def test_of_several_groups_as_many_come_as_fit(queue: Connection) -> None:
    for name in "abc":
        for _ in range(4):
            await enqueue(queue, group_key=name)
    await enqueue(queue)
    counts = [len({row["group_key"] for row in await claim(queue, limit=5)}) for _ in range(2)]
    assert sum(counts) == 4
    assert await queue.fetchval("select count(*) from agent.event where claimed_by is not null") == 13


async def test_a_retry_blocks_its_group_until_it_is_over(queue: Connection) -> None:
    first, second, third = await three(queue)
    rows = {row["id"]: row for row in await claim(queue)}
    await complete(queue, pair(rows[first]))
    await fail(queue, pair(rows[second]), retry_in=timedelta(minutes=1))
    await complete(queue, pair(rows[third]))
    waiting = await enqueue(queue, group_key="g")
    assert await ids(queue) == []
    await advance(queue, timedelta(minutes=1))
    assert await ids(queue) == [second, waiting]


async def test_a_lapsed_group_is_tried_head_alone(queue: Connection) -> None:
    """Only the event that kills its worker exhausts its attempts. The attempt of the others does not count."""
    poison, *others = await three(queue)
    first = await claim(queue)
    assert len(first) == 3
    for attempt in (2, 3):
        await advance(queue, TEN_MINUTES)
        (row,) = await claim(queue)
        assert (row["id"], row["attempts"]) == (poison, attempt)
        assert await complete(queue, *map(pair, first[1:])) == ["stale", "stale"]
    await advance(queue, TEN_MINUTES)
    assert await ids(queue) == []
    assert await sweep(queue) == 1
    assert await ending(queue, poison) == ("expired", "attempts_exhausted")
    rows = await claim(queue)
    assert [(row["id"], row["attempts"]) for row in rows] == [(identity, 1) for identity in others]


async def test_a_held_member_that_was_cancelled_is_not_tried_again_after_a_lapse(queue: Connection) -> None:
    group = [await enqueue(queue, group_key="g", item_key=f"i{number}") for number in range(3)]
    await claim(queue)
    await queue.execute("select agent.cancel_event('i1')")
    await advance(queue, TEN_MINUTES)
    (head,) = await claim(queue)
    await complete(queue, pair(head))
    assert await sweep(queue) == 1
    assert await ending(queue, group[1]) == ("cancelled", "cancelled while running")
    assert await ids(queue) == [group[2]]


async def test_an_old_group_larger_than_a_sweep_goes_all_the_same(queue: Connection) -> None:
    for _ in range(12):
        await enqueue(queue, group_key="g")
    await advance(queue, timedelta(hours=2))
    assert [await queue.fetchval("select agent.sweep_events(_limit => 5)") for _ in range(4)] == [5, 5, 2, 0]


@pytest.mark.parametrize("which", ["head", "member", "all"])
async def test_deleting_by_hand_leaves_a_sound_group(queue: Connection, which: str) -> None:
    first, second, third = await three(queue)
    gone = {"head": [first], "member": [second], "all": [first, second, third]}[which]
    await queue.execute("delete from agent.event where id = any($1::int8[])", gone)
    assert await ids(queue) == [identity for identity in (first, second, third) if identity not in gone]
    assert len(await heads(queue, "g")) == (0 if which == "all" else 1)


async def test_truncating_leaves_a_sound_queue(queue: Connection) -> None:
    await three(queue)
    await queue.execute("truncate agent.event")
    assert await ids(queue) == []
    successor = await enqueue(queue, group_key="g")
    assert await ids(queue) == [successor]


async def test_a_group_that_lost_its_head_is_healed_by_the_sweep(queue: Connection) -> None:
    group = await three(queue)
    await queue.execute("update agent.event set head = false")
    assert await ids(queue) == []
    await queue.execute("select agent.sweep_events()")
    assert await ids(queue) == group


async def test_a_busy_head_makes_its_members_settle_later(queue: Connection, other: Connection) -> None:
    """While an insert into a group commits, the group's settles answer busy, keep their claims and are sent again."""
    await three(queue)
    rows = [pair(row) for row in await claim(queue)]
    async with other.transaction():
        newcomer = await enqueue(other, group_key="g")
        await other.execute("set constraints agent.member_joins immediate")
        assert await complete(queue, *rows) == ["busy"] * 3
    assert await complete(queue, *rows) == ["done"] * 3
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
        assert len(await claim(queue, limit=10)) > 10
        assert await queue.fetchval(fetched) - before < 1000
