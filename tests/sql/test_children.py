"""A running handler starts a child once, under the fence, and takes its end."""

import asyncio
import json
from typing import Any

from surelane.calls import Connection
from surelane.jobs import Job, job_text
from tests.sql.conftest import Connect
from tests.sql.queue_steps import Row, claim, complete, enqueue, fail, locked, only_row, pair, waits_for_lock

WAIT = "child part:1"


async def started(queue: Connection, row: Row) -> tuple[str, Any]:
    """Call ``agent.run_child`` for a claim; return the answer, and what the signal says of the child."""
    taken = await only_row(
        queue, "select * from agent.run_child($1, $2, $3, null, $4)", *pair(row), WAIT, job_text(Job("part"))
    )
    return taken["answer"], None if taken["signal"] is None else json.loads(taken["signal"])["value"]


async def parent(queue: Connection) -> Row:
    """Claim a parent that has started its child."""
    await enqueue(queue, "parent", item_key="p")
    (row,) = await claim(queue, "parent")
    assert await started(queue, row) == ("pending", None)
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
    async with locked(await connect(), row["id"]):
        await queue.execute("set statement_timeout = '1500ms'")  # less than a signal waits for a lock
        answers = await complete(queue, children["p:part:1"], children["other"])
    assert answers == ["busy", "done"]
    assert await complete(queue, children["p:part:1"]) == ["done"]
    assert (await started(queue, row))[0] == "done"


async def test_parent_that_runs_again_or_as_a_new_event_starts_a_child_anew(queue: Connection) -> None:
    row = await parent(queue)
    await complete_child(queue, "7")
    await complete(queue, pair(row))
    await queue.execute("select agent.rerun_events(array[$1::int8])", row["id"])
    (row,) = await claim(queue, "parent")
    assert await started(queue, row) == ("pending", None)
    assert await count(queue, "part") == 2
    await complete_child(queue, "8")
    await fail(queue, pair(row), final=True)
    again = await queue.fetchval("select rerun from agent.rerun_as_new($1, $2, null)", row["id"], WAIT)
    (row,) = await claim(queue, "parent")
    assert row["id"] == again
    assert await started(queue, row) == ("pending", None), "it takes no end of the old one's child"
    assert await count(queue, "part") == 3
