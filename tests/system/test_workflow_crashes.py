"""After ``kill -9`` of a worker, an event that continues as a new one goes on once."""

import asyncio

from surelane.calls import Connection
from surelane.queue import Queue
from tests.sql.migrations import becomes
from tests.system.worker import worker

SETTINGS = {
    "SURELANE_HANDLERS": "tests.system.workflow_handlers:handlers",
    "SURELANE_LEASE": "1s",
    "SURELANE_MAX_ATTEMPTS": "20",
    "SURELANE_CONCURRENCY": "4",
}


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
