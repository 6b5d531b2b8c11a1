"""Groups stay sound if two transactions change them at once, each stopped at the critical step."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from tests.sql.conftest import Connect
from tests.sql.queue_steps import (
    TEN_MINUTES,
    advance,
    all_done,
    claim,
    complete,
    enqueue,
    heads,
    live,
    pair,
    waits_for_lock,
)


async def member(queue: Connection) -> int:
    return await enqueue(queue, group_key="g")


async def ids(queue: Connection) -> list[int]:
    return [row["id"] for row in await claim(queue)]


async def delete(queue: Connection, identity: int) -> None:
    await queue.execute("select agent.delete_event($1)", identity)


async def delete_by_hand(queue: Connection, identity: int) -> None:
    await queue.execute("delete from agent.event where id = $1", identity)


async def cancel(queue: Connection, identity: int) -> None:
    await queue.execute("select agent.cancel_job($1)", identity)


removals = pytest.mark.parametrize("remove", [delete, delete_by_hand, cancel])
Remove = Callable[[Connection, int], Coroutine[Any, Any, None]]


@asynccontextmanager
async def under_way(queue: Connection) -> AsyncIterator[Connection]:
    """Keep a transaction open for the length of the block, with the locks that it takes at its commit."""
    async with queue.transaction():
        await queue.execute("set constraints agent.member_joins immediate")
        yield queue


@removals
async def test_the_head_cannot_vanish_under_an_insert(
    queue: Connection, connect: Connect, remove: Remove
) -> None:
    head = await member(queue)
    other = await connect()
    async with under_way(other):
        newcomer = await member(other)
        removal = asyncio.create_task(remove(queue, head))
        await waits_for_lock(other, queue)
    await removal
    assert await heads(queue, "g") == [newcomer]
    assert await ids(queue) == [newcomer]


@removals
async def test_an_insert_that_finds_its_head_leaving_becomes_the_head(
    queue: Connection, connect: Connect, remove: Remove
) -> None:
    head = await member(queue)
    other = await connect()
    async with under_way(other):
        await remove(other, head)
        insertion = asyncio.create_task(member(queue))
        await waits_for_lock(other, queue)
    newcomer = await insertion
    assert await heads(queue, "g") == [newcomer]


async def test_an_insert_that_finds_its_head_leaving_joins_the_next_one(
    queue: Connection, connect: Connect
) -> None:
    first, second = await member(queue), await member(queue)
    other = await connect()
    async with under_way(other):
        await delete(other, first)
        insertion = asyncio.create_task(member(queue))
        await waits_for_lock(other, queue)
    newcomer = await insertion
    assert await heads(queue, "g") == [second]
    assert await ids(queue) == [second, newcomer]


async def test_two_first_events_of_a_group_make_one_head(queue: Connection, connect: Connect) -> None:
    other = await connect()
    async with under_way(other):
        first = await member(other)
        insertion = asyncio.create_task(member(queue))
        await waits_for_lock(other, queue)
    second = await insertion
    assert await heads(queue, "g") == [first]
    assert await ids(queue) == [first, second]


async def test_a_first_event_that_is_rolled_back_leaves_the_head_to_the_next(
    queue: Connection, connect: Connect
) -> None:
    other = await connect()
    transaction = other.transaction()
    await transaction.start()
    await member(other)
    insertion = asyncio.create_task(member(queue))
    await waits_for_lock(other, queue)
    await transaction.rollback()
    newcomer = await insertion
    assert await heads(queue, "g") == [newcomer]


async def test_a_claim_leaves_a_group_alone_while_an_event_enters_it(
    queue: Connection, connect: Connect
) -> None:
    """Its update of the head could lose the lock with which the newcomer keeps the head in place."""
    head = await member(queue)
    other = await connect()
    async with under_way(other):
        newcomer = await member(other)
        assert await ids(queue) == []
    assert await ids(queue) == [head, newcomer]


@removals
async def test_two_inserts_before_a_future_head_and_its_removal_do_not_deadlock(
    queue: Connection, connect: Connect, remove: Remove
) -> None:
    """Both newcomers would take over, so each locks the head for update from the start."""
    future = await queue.fetchval("select agent.clock() + interval '1 day'")
    head = await enqueue(queue, group_key="g", run_at=future)
    early, late = await connect(), await connect()
    async with under_way(early):
        first = await member(early)
        insertion = asyncio.create_task(member(late))
        await waits_for_lock(early, late)
        removal = asyncio.create_task(remove(queue, head))
        await waits_for_lock(early, queue)
    second = await insertion
    await removal
    assert await heads(queue, "g") == [first]
    assert await ids(queue) == [first, second]


async def test_a_newcomer_takes_over_from_one_that_has_just_taken_over(
    queue: Connection, connect: Connect
) -> None:
    day, hour = [
        await queue.fetchval("select agent.clock() + $1::text::interval", at) for at in ("1 day", "1 hour")
    ]
    await enqueue(queue, group_key="g", run_at=day)
    other = await connect()
    async with under_way(other):
        await enqueue(other, group_key="g", run_at=hour)
        insertion = asyncio.create_task(member(queue))
        await waits_for_lock(other, queue)
    now = await insertion
    assert await heads(queue, "g") == [now]
    assert await ids(queue) == [now]


async def test_a_removal_that_waited_for_a_head_that_stepped_down_locks_the_new_one(
    queue: Connection, connect: Connect
) -> None:
    """A group changes in one transaction at a time, even if its head changed while the other one waited."""
    future = await queue.fetchval("select agent.clock() + interval '1 day'")
    head = await enqueue(queue, group_key="g", run_at=future)
    other = await connect()
    async with under_way(queue):
        async with under_way(other):
            newcomer = await member(other)
            removal = asyncio.create_task(delete(queue, head))
            await waits_for_lock(other, queue)
        await removal
        assert await ids(other) == [], "the group is changing"
    assert await live(queue, head) is None
    assert await heads(queue, "g") == [newcomer]
    assert await ids(other) == [newcomer]


async def test_a_removal_steps_over_a_member_that_is_being_deleted_by_hand(
    queue: Connection, connect: Connect
) -> None:
    """It waits only if no other member can become the head."""
    first, second, third = [await member(queue) for _ in range(3)]
    other = await connect()
    async with under_way(other):
        await delete_by_hand(other, second)
        await delete(queue, first)
        assert await heads(queue, "g") == [third]
        removal = asyncio.create_task(delete(queue, third))
        await waits_for_lock(other, queue)
    await removal
    assert await queue.fetchval("select count(*) from agent.event") == 0
    newcomer = await member(queue)
    assert await heads(queue, "g") == [newcomer]


async def test_settling_a_batch_in_pieces_from_many_connections_loses_nobody(
    queue: Connection, connect: Connect
) -> None:
    connections = [await connect() for _ in range(4)]

    async def settle(connection: Connection, item: tuple[int, int]) -> int:
        tries = 1
        while await complete(connection, item) != ["done"]:
            tries += 1
        return tries

    for _ in range(5):
        for _ in range(4):
            await member(queue)
        rows = await claim(queue)
        newcomers = [await member(queue) for _ in range(2)]
        await all_done(
            *(settle(connection, pair(row)) for connection, row in zip(connections, rows, strict=True)),
        )
        assert await ids(queue) == newcomers
        await complete(queue, *((identity, 1) for identity in newcomers))
    assert await queue.fetchval("select count(*) from agent.event") == 0


async def test_a_late_settle_and_the_claim_that_follows_do_not_both_win(
    queue: Connection, connect: Connect
) -> None:
    other = await connect()
    for _ in range(10):
        await member(queue)
        (row,) = await claim(queue)
        await advance(queue, TEN_MINUTES)
        answers, again = await all_done(complete(queue, pair(row)), claim(other))
        while answers == ["busy"]:
            answers = await complete(queue, pair(row))
        assert (answers == ["done"]) is (again == [])
        if again:
            assert await complete(queue, *map(pair, again)) == ["done"]


async def test_jobs_enqueued_in_one_transaction_enter_their_groups_together(
    queue: Connection, connect: Connect
) -> None:
    """Two transactions that enter groups in different orders may deadlock. PostgreSQL then fails one of them."""
    for name in "ab":
        await enqueue(
            queue, group_key=name, run_at=await queue.fetchval("select agent.clock() + interval '1 day'")
        )
    other = await connect()

    async def both(connection: Connection, names: str) -> None:
        async with connection.transaction():
            for name in names:
                await enqueue(connection, group_key=name)
                await asyncio.sleep(0)

    outcomes = await asyncio.wait_for(
        asyncio.gather(both(queue, "ab"), both(other, "ba"), return_exceptions=True), 60
    )
    failures = [outcome for outcome in outcomes if outcome is not None]
    assert all(isinstance(failure, asyncpg.DeadlockDetectedError) for failure in failures)
    assert len(failures) <= 1
    assert {name: len(await heads(queue, name)) for name in "ab"} == {"a": 1, "b": 1}


async def test_rescues_and_extensions_of_one_group_do_not_deadlock(
    queue: Connection, connect: Connect
) -> None:
    other = await connect()
    for _ in range(6):
        await member(queue)
    rows = await claim(queue)
    ids_, claims = [row["id"] for row in rows], [row["claim"] for row in rows]
    await advance(queue, timedelta(minutes=6))
    for _ in range(20):
        await all_done(
            queue.fetch("select agent.extend_leases($1, $2)", ids_, claims),
            other.fetchval("select agent.rescue_events('0')"),
        )
    assert len(await heads(queue, "g")) == 1
