"""After ``kill -9`` of a worker, each continuation still runs exactly once."""

import asyncio
import json
import os
import signal

from surelane.calls import Connection
from surelane.jobs import Continuation, Job
from surelane.queue import Queue
from tests.sql.migrations import becomes
from tests.system.worker import ended, worker

BRANCHES, LEAVES = 6, 5
SETTINGS = {
    "SURELANE_HANDLERS": "tests.system.workflow_handlers:handlers",
    "SURELANE_LEASE": "1s",
    "SURELANE_MAX_ATTEMPTS": "20",
    "SURELANE_CONCURRENCY": "4",
}


async def test_a_nested_workflow_survives_the_death_of_its_workers(
    database: str, connection: Connection
) -> None:
    queue = Queue(connection)
    branches = [Job("branch", {"leaves": LEAVES}) for _ in range(BRANCHES)]
    async with worker(database, **SETTINGS) as first, worker(database, **SETTINGS) as survivor:
        announced = "select count(*) = 2 from agent.worker"
        await becomes(connection, announced)  # which they do shortly after they are ready
        identity = await queue.fan_out(branches, Continuation("sum"))
        async with asyncio.timeout(60):
            while not await connection.fetchval(  # noqa: ASYNC110 - nothing to listen to
                "select exists (select from agent.event_hist where kind = 'part')"
                " and exists (select from agent.event where claimed_by is not null)"
            ):
                await asyncio.sleep(0.005)
        os.kill(first.process.pid, signal.SIGKILL)
        row = await ended(connection, identity, within=60)
        assert survivor.child.exit_code is None

    assert json.loads(row["result"])["sum"] == BRANCHES * LEAVES
    counts = await connection.fetch("select kind, count(*) from agent.event_hist group by kind order by kind")
    assert dict(map(tuple, counts)) == {
        "branch": BRANCHES,
        "part": BRANCHES * LEAVES,
        "sum": BRANCHES + 1,
    }
    assert await connection.fetchval("select count(*) from agent.event") == 0
    assert await connection.fetchval("select count(*) from agent.worker") == 1, (
        "the dead one could not retire; the sweep forgets it after a day"
    )
