"""Workers run fan-outs, their continuations, and events that wait for an answer."""

import asyncio
import json

from surelane.calls import Connection
from surelane.queue import Queue
from tests.system.worker import ended, enqueue, worker


async def test_plan_goes_on_in_subtasks_and_their_synthesis(database: str, connection: Connection) -> None:
    async with worker(database):
        planned = await ended(connection, await enqueue(connection, "plan", {"parts": 5}))
        async with asyncio.timeout(30):
            while (  # noqa: ASYNC110 - no event says so
                row := await connection.fetchrow(
                    "select outcome, result from agent.event_hist where kind = 'synthesize'"
                )
            ) is None:
                await asyncio.sleep(0.02)
    assert (planned["outcome"], json.loads(planned["result"])) == ("completed", "planned")
    assert (row["outcome"], json.loads(row["result"])) == ("completed", 0 + 1 + 4 + 9 + 16)


async def test_event_waits_for_its_answer_without_a_worker(database: str, connection: Connection) -> None:
    queue = Queue(connection)
    async with worker(database) as running:
        identity = await enqueue(connection, "dispatch-execute")
        async with asyncio.timeout(30):
            while await queue.answer_event(identity, '{"from": "elsewhere"}') != "done":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        row = await ended(connection, identity)
    assert (row["outcome"], json.loads(row["result"])) == ("completed", {"from": "elsewhere"})
    assert not any("stale" in line for line in running.output)
