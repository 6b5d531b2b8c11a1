"""After ``kill -9`` of a worker, each continuation still runs exactly once."""

import asyncio
import json

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
        first.child.kill()
        row = await ended(connection, identity, within=60)
        assert survivor.child.exit_code is None

    assert json.loads(row["result"])["sum"] == BRANCHES * LEAVES
    counts = await connection.fetch(
        "select kind, count(*) from agent.event_hist where kind in ('branch', 'part', 'sum') group by kind"
    )
    wanted = {"branch": BRANCHES, "part": BRANCHES * LEAVES, "sum": BRANCHES + 1}
    assert dict(map(tuple, counts)) == wanted
    live = "select count(*) from agent.event where kind in ('branch', 'part', 'sum')"
    assert await connection.fetchval(live) == 0
    assert await connection.fetchval("select count(*) from agent.worker") == 1, (
        "the dead one could not retire; the sweep forgets it after a day"
    )


async def test_an_endless_event_goes_on_once_after_its_workers_died(
    database: str, connection: Connection
) -> None:
    """At every moment one event of the key is live, and no number is skipped or comes twice."""
    rounds = 300
    await Queue(connection).enqueue("endless", {"left": rounds}, item_key="chain", group_key="chain")
    far = "select count(*) >= $1 from agent.event_hist where kind = 'endless'"
    for stop in (20, 60):
        async with worker(database, **SETTINGS) as first:
            async with asyncio.timeout(60):
                while not await connection.fetchval(far, stop):
                    assert await connection.fetchval("select count(*) from agent.event") == 1
            first.child.kill()
            await first.child.wait()
    async with worker(database, **SETTINGS) as last:
        await becomes(connection, f"select count(*) = {rounds + 1} from agent.event_hist", within=120)
        assert "continues as a new one again and again" in "\n".join(last.output)
    left = await connection.fetch(
        "select event ->> 'left' as left, item_key from agent.event_hist order by id"
    )
    expected = [(n, "chain") for n in range(rounds, -1, -1)]
    assert [(int(row["left"]), row["item_key"]) for row in left] == expected
    assert await connection.fetchval("select count(*) from agent.event") == 0
