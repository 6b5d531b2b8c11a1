"""Changes on many events go on beside the rows that a foreign open transaction has locked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from surelane.calls import Connection
from surelane.jobs import Continuation, Job
from surelane.queue import Queue
from tests.sql import queue_steps as do
from tests.sql.conftest import Connect
from tests.sql.queue_steps import TEN_MINUTES, pair

LOCKED = "select from agent.event where id = $1 for update"
DELETED = "delete from agent.event where id = $1"
foreign = pytest.mark.parametrize("statement", [LOCKED, DELETED], ids=["locked", "deleted"])


@asynccontextmanager
async def stays_open(connection: Connection, statement: str, *arguments: Any) -> AsyncIterator[None]:
    """Run a statement in a transaction that stays open for the length of the block. Roll it back at the end.

    Nothing in the block may wait for it.
    """
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(statement, *arguments)
    try:
        async with asyncio.timeout(60):
            yield
    finally:
        await transaction.rollback()


async def member(queue: Connection, group: str = "g", **named: Any) -> int:
    return await do.enqueue(queue, group_key=group, **named)


@foreign
async def test_a_locked_member_stops_no_other(queue: Connection, connect: Connect, statement: str) -> None:
    first, locked, third = [await member(queue) for _ in range(3)]
    other = await do.enqueue(queue)
    async with stays_open(await connect(), statement, locked):
        rows = await do.claim(queue)
        assert {row["id"] for row in rows} == {first, third, other}
        answers = dict(
            zip([row["id"] for row in rows], await do.complete(queue, *map(pair, rows)), strict=True)
        )
        assert answers[other] == answers[first] == "done"
        assert answers[third] == "busy", "the group's next head is locked"
    assert await do.complete(queue, (third, 1)) == ["done"]
    assert [row["id"] for row in await do.claim(queue)] == [locked]
    first, locked, third = [await member(queue, "h") for _ in range(3)]
    other = await do.enqueue(queue)
    assert len(await do.claim(queue)) == 4
    items = [(identity, 1) for identity in (first, locked, third, other)]
    await do.advance(queue, timedelta(minutes=5))
    async with stays_open(await connect(), statement, locked):
        assert await do.extend(queue, *items) == ["done", "busy", "done", "done"]
        assert await do.release(queue, (locked, 1)) == ["busy"]
        assert await do.complete(queue, *items) == ["done", "busy", "busy", "done"]
        row = await do.event_of(queue, third)
        assert row["visible_in"] > timedelta(minutes=9)
    assert await do.complete(queue, *items[1:3]) == ["done", "done"]


@pytest.mark.parametrize("how", ["fail", "final", "release", "snooze", "await"])
async def test_a_settle_with_a_locked_follower_is_busy(queue: Connection, connect: Connect, how: str) -> None:
    """Its settle elects the group's next head among the members, and may not wait for one."""
    held, other = await member(queue), await do.enqueue(queue)
    rows = await do.claim(queue)
    locked = await member(queue)
    items = [(held, 1), (other, 1)]
    async with stays_open(await connect(), LOCKED, locked):
        match how:
            case "fail" | "final":
                answers = await do.fail(queue, *items, final=how == "final")
            case "release":
                answers = await do.release(queue, *items)
            case "snooze":
                answers = [await do.snooze(queue, item, TEN_MINUTES) for item in items]
            case _:
                deadline = await queue.fetchval("select agent.clock() + interval '1 hour'")
                answers = [await do.await_answer(queue, item, deadline) for item in items]
        # After all outcomes but a final failure the event stays and may be the head again.
        assert answers == ["busy" if how == "final" else "done", "done"]
    assert len(rows) == 2
    assert len(await do.heads(queue, "g")) == 1


async def test_a_lapsed_group_with_a_locked_member_waits_alone(queue: Connection, connect: Connect) -> None:
    """The settle must fence its members before the head is tried again."""
    first, locked = await member(queue), await member(queue)
    assert len(await do.claim(queue)) == 2
    await do.advance(queue, TEN_MINUTES)
    other = await do.enqueue(queue)
    async with stays_open(await connect(), LOCKED, locked):
        assert [row["id"] for row in await do.claim(queue)] == [other]
    assert [row["id"] for row in await do.claim(queue)] == [first]
    row = await do.event_of(queue, locked)
    assert (row["claimed_by"], row["attempts"]) == (None, 0)


@pytest.mark.parametrize(
    "statement",
    [
        "select agent.enqueue('job', _group_key => 'g')",
        "select from agent.event where kind = 'then' for update",
    ],
    ids=["its group is entered", "it is locked"],
)
async def test_children_end_beside_continuations(queue: Connection, connect: Connect, statement: str) -> None:
    """Only the settle that counts off a locked continuation answers busy."""
    client = Queue(queue)
    await client.fan_out([Job("child", {})], Continuation("then", group_key="g"))
    await client.fan_out([Job("child", {})], Continuation("also"))
    other = await do.enqueue(queue, "child", group_key="h")
    rows = await do.claim(queue, "child")
    items = [pair(row) for row in sorted(rows, key=lambda row: row["id"])]
    busy = "busy" if statement.startswith("select from") else "done"
    async with stays_open(await connect(), statement):
        assert await do.complete(queue, *items) == [busy, "done", "done"]
        assert items[2][0] == other
    await do.complete(queue, *items)
    assert len(await do.claim(queue, "then", "also")) == 2


async def test_a_failed_child_waits_for_nothing_ending_with_it(queue: Connection, connect: Connect) -> None:
    """The first failed child ends the inner continuation, which counts off the outer one."""
    client = Queue(queue)
    outer = await client.fan_out([Job("plan", {})], Continuation("outer", fails_with_children=True))
    (plan,) = await do.claim(queue, "plan")
    await do.continue_with(queue, pair(plan), [Job("child")], Continuation("inner", fails_with_children=True))
    other = await do.enqueue(queue, "child")
    rows = sorted(await do.claim(queue, "child"), key=lambda row: row["id"])
    async with stays_open(await connect(), LOCKED, outer):
        assert await do.fail(queue, *map(pair, rows), final=True) == ["busy", "done"]
    assert rows[1]["id"] == other
    assert await do.fail(queue, pair(rows[0]), final=True) == ["done"]
    assert await queue.fetchval("select count(*) from agent.event") == 0


async def test_settles_beside_continuations_do_not_deadlock(queue: Connection, other: Connection) -> None:
    """Each ended a member of the group in which the other's continuation waits."""
    client = Queue(queue)
    for name in "ab":
        await member(queue, name)
        await client.fan_out([Job("child", {})], Continuation("then", group_key=name))
    in_a, in_b = [pair(row) for row in await do.claim(queue)]
    of_a, of_b = [pair(row) for row in sorted(await do.claim(queue, "child"), key=lambda row: row["id"])]
    async with asyncio.timeout(60), queue.transaction():
        assert await do.complete(queue, in_a) == ["done"]
        async with other.transaction():
            assert await do.complete(other, in_b) == ["done"]
            assert await do.complete(queue, of_b) == ["busy"]
            assert await do.complete(other, of_a) == ["busy"]
    assert await do.complete(queue, of_a, of_b) == ["done", "done"]
    assert len(await do.claim(queue, "then")) == 2


async def test_a_settle_whose_children_cannot_enter_is_busy(queue: Connection, other: Connection) -> None:
    head, plan = await member(queue), await do.enqueue(queue, "plan")
    await do.claim(queue, "plan")
    settle = ((plan, 1), [Job("child", {}, group_key="g")], Continuation("then"))
    async with stays_open(other, LOCKED, head):
        assert await do.continue_with(queue, *settle) == "busy"
    assert await do.continue_with(queue, *settle) == "done"
    event = await do.enqueue(queue, item_key="k")
    async with stays_open(other, LOCKED, event):
        assert await queue.fetchval("select agent.cancel_event('k')") == "busy"
    assert await queue.fetchval("select agent.cancel_event('k')") == "cancelled"


async def test_sweeps_and_operators_pass_a_locked_continuation(queue: Connection, connect: Connect) -> None:
    """The event that would count it off waits for the next sweep. The others end."""
    client = Queue(queue)
    later = await client.fan_out([Job("child", {}), Job("child", {}), Job("child", {})], Continuation("then"))
    children = await queue.fetchval("select array_agg(id order by id) from agent.event where kind = 'child'")
    other = await do.enqueue(queue)
    parked = await do.enqueue(queue, "asks")
    await queue.execute("update agent.event set vt = vt - interval '2 hours' where kind in ('job', 'child')")
    await do.claim(queue, "asks")
    assert await do.await_answer(queue, (parked, 1), None) == "done"
    await queue.execute("update agent.event set continuation_id = $1 where id = $2", later, parked)
    await queue.execute("update agent.event set waits_for = 4 where id = $1", later)
    async with stays_open(await connect(), LOCKED, later):
        assert await queue.fetchval("select agent.delete_expired_events()") == 1
        assert await do.live(queue, other) is None
        answers = await queue.fetch("select * from agent.cancel_jobs($1)", children[:1])
        assert [tuple(row) for row in answers] == [(children[0], "busy")]
        assert await queue.fetchval("select agent.cancel_job($1)", children[0]) == "busy"
        assert await queue.fetchval("select agent.answer_event($1, '1')", parked) == "running"
    assert await queue.fetchval("select agent.answer_event($1, '1')", parked) == "done"
    assert await queue.fetchval("select agent.cancel_job($1)", children[0]) == "cancelled"
    assert await queue.fetchval("select agent.delete_expired_events()") == 2
    assert await do.claim(queue, "then") != []
