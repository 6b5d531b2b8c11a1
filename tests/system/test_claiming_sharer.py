"""A worker with a large backlog of one workspace: what overtakes it."""

from surelane.calls import Connection
from tests.system.worker import ended, enqueue, worker

CROWD = 600
"""Each takes 50 ms of the only slot: they are not done before the test is."""
FLOOD = """
select agent.enqueue('sleep', '{"seconds": 0.05, "team_id": "T-crowd"}') from generate_series(1, $1)
"""
WAITING = "select count(*) from agent.event where event ->> 'team_id' = 'T-crowd'"


async def test_priorities_and_other_workspaces_overtake_a_backlog(
    database: str, connection: Connection
) -> None:
    await connection.execute(FLOOD, CROWD)
    behind = await enqueue(connection, "sleep", {"seconds": 0.01, "team_id": "T-behind"})
    await connection.execute("update agent.event set vt = vt - interval '10 seconds'")
    async with worker(database, SURELANE_CONCURRENCY="1", SURELANE_DRAIN_TIMEOUT="1s"):
        urgent = await connection.fetchval("select agent.enqueue('echo', '{}', 0)")
        await ended(connection, urgent)
        await ended(connection, behind)
        later = await enqueue(connection, "sleep", {"seconds": 0.01, "team_id": "T-later"})
        await ended(connection, later)
        assert await connection.fetchval(WAITING) > CROWD / 4
