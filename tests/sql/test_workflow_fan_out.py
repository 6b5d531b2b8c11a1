"""A continuation runs once, when all its children have ended. A running handler starts a child once."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from surelane.calls import Connection
from surelane.errors import Conflict, InvalidInput
from surelane.jobs import Continuation, Job, job_text
from surelane.queue import Queue
from surelane_service.intake import Intake
from tests.sql import queue_steps as do
from tests.sql.conftest import Connect
from tests.sql.queue_steps import (
    TEN_MINUTES,
    Row,
    advance,
    await_answer,
    claim,
    complete,
    ending,
    enqueue,
    history_of,
    locked,
    only_row,
    pair,
    sweep,
    waits_for_lock,
)


def jobs(count: int, **fields: Any) -> list[Job]:
    return [Job("child", {"n": number}, **fields) for number in range(count)]


async def end(queue: Connection, row: Row, how: str) -> None:
    """End a claimed child as completed, failed, cancelled or expired."""
    match how:
        case "completed":
            await do.complete(queue, pair(row), results=[json.dumps({"of": row["id"]})])
        case "failed":
            await do.fail(queue, pair(row), final=True, reason="no_luck")
        case "cancelled":
            await queue.execute("select agent.cancel_job($1)", row["id"])
            await do.fail(queue, pair(row))
        case _:
            await queue.execute("update agent.event set deadline = '2020-01-01' where id = $1", row["id"])
            await do.advance(queue, TEN_MINUTES)
            await do.sweep(queue)


async def test_a_continuation_waits_for_every_child_and_knows_them_in_order(queue: Connection) -> None:
    identity = await Queue(queue).fan_out(jobs(4), Continuation("then", {"goal": "g"}))
    for how in ("completed", "failed", "cancelled", "expired"):
        assert await do.claim(queue, "then") == []
        assert await queue.fetchval("select (agent.why_waiting($1)).reason", identity) == "waits_for_children"
        await end(queue, (await do.claim(queue, "child", limit=1))[0], how)

    (row,) = await do.claim(queue, "then")
    assert (row["id"], json.loads(row["event"])) == (identity, {"goal": "g"})
    children = await Queue(queue).children(identity)
    reasons = {"cancelled": "cancelled while running", "completed": None}
    reasons |= {"expired": "deadline_passed", "failed": "no_luck"}
    assert {child.status: child.reason for child in children} == reasons
    assert len(children) == 4
    given = [Job("child", {"n": n}, group_key=f"g{-n % 7}", item_key=f"i{-n % 50}") for n in range(50)]
    identity = await Queue(queue).fan_out(given, Continuation("then"))
    assert [child.payload["n"] for child in await Queue(queue).children(identity)] == list(range(50))
    none = await Queue(queue).fan_out([], Continuation("then"))
    assert [row["id"] for row in await do.claim(queue, "then")] == [none], "without children it runs at once"


@pytest.mark.parametrize("how", ["failed", "cancelled", "expired"])
async def test_a_continuation_may_fail_with_its_first_child(queue: Connection, how: str) -> None:
    identity = await Queue(queue).fan_out(jobs(3), Continuation("then", fails_with_children=True))
    first, second, third = await do.claim(queue, "child")
    await do.complete(queue, pair(first), pair(third))
    await end(queue, second, how)
    assert await do.ending(queue, identity) == ("failed", f"child_{how}")
    # The failure of a grandchild reaches the outermost.
    outer = await Queue(queue).fan_out([Job("plan")], Continuation("outer", fails_with_children=True))
    (plan,) = await do.claim(queue, "plan")
    await do.continue_with(queue, pair(plan), jobs(1), Continuation("inner", fails_with_children=True))
    await end(queue, (await do.claim(queue, "child"))[0], how)
    assert await do.ending(queue, outer) == ("failed", "child_failed")


async def test_a_continuation_stands_in_for_the_event_that_it_continues(queue: Connection) -> None:
    """On three levels, the outermost waits until the innermost has ended."""
    client = Queue(queue)
    outer = await client.fan_out([Job("plan"), Job("child")], Continuation("outer"))
    (plan,) = await do.claim(queue, "plan")
    answer = await do.continue_with(queue, pair(plan), jobs(2), Continuation("inner"), '"planned"')
    assert answer == "done"
    assert (await do.ending(queue, plan["id"]))[0] == "completed"

    await do.complete(queue, *map(pair, await do.claim(queue, "child")))
    assert await do.claim(queue, "outer") == [], "the inner continuation has not run"
    (inner,) = await do.claim(queue, "inner")
    await do.complete(queue, pair(inner), results=['"found"'])
    assert [row["id"] for row in await do.claim(queue, "outer")] == [outer]
    kinds = [(child.kind, child.result) for child in await client.children(outer)]
    assert kinds == [("child", None), ("inner", "found")], "it is now the child in place of the plan"


async def test_a_refused_fan_out_leaves_nothing_and_a_lost_claim_starts_nothing(queue: Connection) -> None:
    await do.enqueue(queue, "other", item_key="taken")
    client = Queue(queue)
    for children, then in (
        ([*jobs(2), Job("child", item_key="taken")], Continuation("then")),
        (jobs(2), Continuation("then", item_key="taken")),
        ([*jobs(2), Job("")], Continuation("then")),
        (jobs(10_001), Continuation("then")),
    ):
        with pytest.raises((Conflict, InvalidInput)):
            await client.fan_out(children, then)
    assert await queue.fetchval("select count(*) from agent.event") == 1
    await queue.execute("delete from agent.event")
    await do.enqueue(queue, "plan")
    (first,) = await do.claim(queue, "plan")
    await do.advance(queue, TEN_MINUTES)
    (second,) = await do.claim(queue, "plan")
    assert await do.continue_with(queue, pair(first), jobs(2), Continuation("then")) == "stale"
    assert await do.continue_with(queue, pair(second), jobs(2), Continuation("then")) == "done"
    assert await do.continue_with(queue, pair(second), jobs(2), Continuation("then")) == "stale"
    assert await queue.fetchval("select count(*) from agent.event") == 3


async def test_a_continuation_is_cancelled_not_moved_and_finds_children_again(queue: Connection) -> None:
    client = Queue(queue)
    at = await queue.fetchval("select agent.clock()")
    identity = await client.fan_out(jobs(2), Continuation("then", item_key="k"))
    assert await client.reschedule("k", at) == "waiting"
    assert await client.enqueue("then", {"n": 1}, item_key="k", on_duplicate="replace") == identity
    assert await do.claim(queue, "then") == []
    assert await client.cancel("k") == "cancelled"
    await do.complete(queue, *map(pair, await do.claim(queue, "child")))
    assert await do.ending(queue, identity) == ("cancelled", "cancelled by surelane")
    identity = await Queue(queue).fan_out(jobs(2), Continuation("then"))
    first, second = await do.claim(queue, "child")
    await do.complete(queue, pair(first))
    await do.snooze(queue, pair(second), timedelta(0))
    (second,) = await do.claim(queue, "child")
    await do.fail(queue, pair(second))
    assert await do.claim(queue, "then") == []
    await do.complete(queue, pair((await do.claim(queue, "child"))[0]))
    assert (await do.event_of(queue, identity))["waits_for"] == 0
    await do.fail(queue, pair((await do.claim(queue, "then"))[0]), final=True)
    await queue.execute("select agent.rerun_events($1)", [identity])
    assert [row["id"] for row in await do.claim(queue, "then")] == [identity]
    assert len(await Queue(queue).children(identity)) == 2


async def test_groups_go_on_while_their_continuation_waits(queue: Connection) -> None:
    identity = await Queue(queue).fan_out(jobs(1), Continuation("then", group_key="g"))
    other = await do.enqueue(queue, "talk", group_key="g")
    (row,) = await do.claim(queue, "talk", "then")
    assert row["id"] == other
    await do.complete(queue, pair((await do.claim(queue, "child"))[0]))
    assert await do.claim(queue, "talk", "then") == [], "the group is held"
    await do.complete(queue, pair(row))
    assert [found["id"] for found in await do.claim(queue, "talk", "then")] == [identity]
    assert await do.heads(queue, "g") == [identity]
    # Once its children have ended, it comes before what is scheduled.
    identity = await Queue(queue).fan_out(jobs(1), Continuation("then", group_key="h"))
    await do.enqueue(queue, "talk", group_key="h", run_at=datetime.now(UTC) + timedelta(days=1))
    await do.complete(queue, pair((await do.claim(queue, "child"))[0]))
    assert [found["id"] for found in await do.claim(queue, "then")] == [identity]


async def test_an_answer_of_the_asked_ends_what_awaits_it_once_in_time(queue: Connection) -> None:
    client = Queue(queue)
    identity = await Queue(queue).fan_out([Job("ask"), Job("ask")], Continuation("then"))
    first, second = await claim(queue, "ask")
    deadline = await queue.fetchval("select agent.clock() + interval '5 minutes'")
    assert await client.answer_event(first["id"], "1") == "running"
    for row in (first, second):
        assert await await_answer(queue, pair(row), deadline) == "done"
        assert await await_answer(queue, pair(row), deadline) == "stale"
    assert (await queue.fetchval("select reason from agent.why_waiting($1)", first["id"])) == "awaits_answer"
    assert await claim(queue, "ask") == []
    assert [await client.answer_event(first["id"], f'{{"n": {n}}}') for n in (1, 2)] == ["done", "unknown"]
    assert await client.answer_event(identity, "1") == "unknown", "a continuation awaits no answer"
    assert await client.answer_event(999_999_999, "1") == "unknown"

    await advance(queue, timedelta(minutes=6))
    assert await client.answer_event(second["id"], "1") == "unknown", "too late"
    await sweep(queue)
    assert await ending(queue, second["id"]) == ("expired", "deadline_passed")
    assert [child.result for child in await client.children(identity)] == [{"n": 1}, None]
    assert len(await claim(queue, "then")) == 1
    await client.enqueue("dispatch-execute", {"agent": "scribe"})
    await client.enqueue("ask", {"agent": "scribe"})
    deadline = await queue.fetchval("select agent.clock() + interval '5 minutes'")
    dispatched, asked = sorted(await claim(queue, "dispatch-execute", "ask"), key=lambda row: row["id"])
    for row in (dispatched, asked):
        await await_answer(queue, pair(row), deadline)
    assert await Intake(queue).answer_dispatch(dispatched["id"], ["critic"], "1") == "unknown"
    assert await Intake(queue).answer_dispatch(asked["id"], ["scribe"], "1") == "unknown"
    assert await Intake(queue).answer_dispatch(dispatched["id"], ["critic", "scribe"], "1") == "done"
    answered = await history_of(queue, dispatched["id"])
    assert answered["result"] == "1"


async def test_a_handler_may_answer_what_was_not_cancelled(queue: Connection, connect: Connect) -> None:
    """One event's handler ends another event, as for an approval by a button."""
    client = Queue(await connect("surelane_worker"))
    deadline = await queue.fetchval("select agent.clock() + interval '5 minutes'")
    first, second = [await client.enqueue("approval", item_key=key) for key in "ab"]
    rows = {row["id"]: pair(row) for row in await claim(queue, "approval")}
    assert await client.cancel("b") == "running"
    assert [await await_answer(queue, each, deadline) for each in rows.values()] == ["done", "done"]
    assert await client.answer_event(first, '"approved"') == "done"
    assert await ending(queue, second) == ("cancelled", "cancelled while running")


WAIT = "child part:1"


async def started_child(queue: Connection, row: Row) -> tuple[str, Any]:
    """Call ``agent.run_child`` for a claim; return the answer, and what the signal says of the child."""
    taken = await only_row(
        queue, "select * from agent.run_child($1, $2, $3, null, $4)", *pair(row), WAIT, job_text(Job("part"))
    )
    return taken["answer"], None if taken["signal"] is None else json.loads(taken["signal"])["value"]


async def parent(queue: Connection) -> Row:
    """Claim a parent that has started_child its child."""
    await enqueue(queue, "parent", item_key="p")
    (row,) = await claim(queue, "parent")
    assert await started_child(queue, row) == ("pending", None)
    return row


async def complete_child(queue: Connection, result: str) -> None:
    (child,) = await claim(queue, "part")
    assert await complete(queue, pair(child), results=[result]) == ["done"]


async def count(queue: Connection, kind: str) -> int:
    found: int = await queue.fetchval("select count(*) from agent.job where kind = $1", kind)
    return found


async def test_cancel_waits_for_a_child_that_another_has_locked(queue: Connection, other: Connection) -> None:
    row = await parent(queue)
    async with other.transaction():
        await other.execute("select from agent.event where kind = 'part' for update")
        cancelling = asyncio.create_task(queue.fetchval("select agent.cancel_job($1)", row["id"]))
        await waits_for_lock(other, queue)
    assert await cancelling == "running"
    assert await queue.fetchval("select status from agent.job where kind = 'part'") == "cancelled"


async def test_child_of_a_locked_parent_ends_later_alone(queue: Connection, connect: Connect) -> None:
    """Its settle answers at once: it does not wait for the parent's row."""
    row = await parent(queue)
    await enqueue(queue, "part", item_key="other")
    children = {child["item_key"]: pair(child) for child in await claim(queue, "part")}
    waiting = "alter function agent.send_signal set lock_timeout = '{}'; set statement_timeout = '60s'"
    await queue.execute(waiting.format("0"))  # a signal that waited would do so without end
    try:
        async with locked(await connect(), row["id"]):
            answers = await complete(queue, children["p:part:1"], children["other"])
    finally:
        await queue.execute(waiting.format("2s"))
    assert answers == ["busy", "done"]
    assert await complete(queue, children["p:part:1"]) == ["done"]
    assert (await started_child(queue, row))[0] == "done"
