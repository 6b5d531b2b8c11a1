"""A durable handler in a real process that is killed. What else holds of them is in tests/fleet."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import asyncpg

from surelane.calls import Connection
from surelane.queue import Queue
from tests.system.worker import ended, enqueue, worker

HANDLERS = "tests.system.durable_handlers:handlers"


async def result_of(connection: Connection, identity: int) -> Any:
    """Wait for the end of an event; return its result."""
    row = await ended(connection, identity)
    assert row["outcome"] == "completed", row
    return json.loads(row["result"] or "null")


async def suspended(connection: Connection, identity: int) -> None:
    """Wait until an event is suspended."""
    reason = None
    async with asyncio.timeout(60):
        while reason != "suspended":
            reason = await connection.fetchval("select reason from agent.why_waiting($1)", identity)
            await asyncio.sleep(0.01)


async def test_no_stored_step_runs_again_although_the_worker_is_killed_everywhere(
    database: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    settings = {"SURELANE_HANDLERS": HANDLERS, "SURELANE_WORKER_NAME": "mortal"}
    deaths = 0
    connection = await asyncpg.connect(database)
    identity = await enqueue(connection, "mortal", {"log": str(log)}, max_attempts=100)
    await Queue(connection).signal(str(identity), "answer", 5)
    while not await connection.fetchval("select count(*) from agent.event_hist"):
        async with worker(database, ready="", **settings) as running:
            end = asyncio.create_task(ended(connection, identity, within=60))
            await asyncio.wait(
                [end, asyncio.create_task(running.child.wait())], return_when="FIRST_COMPLETED"
            )
            if not end.done():
                end.cancel()
                await asyncio.wait([end])
                assert running.child.exit_code == -signal.SIGKILL, running.output
                deaths += 1
    result = await result_of(connection, identity)
    await connection.close()
    assert (result["total"], result["text"]) == (16, "deploy")
    lines = log.read_text().splitlines()
    assert deaths == sum(line.startswith("died") for line in lines) == 11
    ran = ["ran count 1", "ran count 2", "ran count 5", "ran plan"]
    assert sorted(line for line in lines if line.startswith("ran")) == ran
