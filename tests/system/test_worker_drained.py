"""An operator drains one worker: it ends what it runs, claims nothing, lives on, and claims again once resumed."""

from surelane.calls import Connection
from surelane_operator.changes import Changes
from tests.processes import until
from tests.system.worker import claimed, ended, enqueue, live, worker


async def test_a_drained_worker_ends_what_it_runs_and_claims_nothing_until_it_is_resumed(
    database: str, connection: Connection
) -> None:
    operations = Changes(connection)

    async def state() -> str:
        (listed,) = await operations.workers()
        return str(listed["state"])

    async with worker(database, SURELANE_POLL_INTERVAL="200ms") as running:
        (name,) = [listed["name"] for listed in await operations.workers()]
        first = await enqueue(connection, "sleep", {"seconds": 1})
        await claimed(connection, first)
        assert await operations.drain_worker(name, drained=True)
        assert await state() == "drained"
        await until(lambda: any("drained this worker" in line for line in running.output))
        assert (await ended(connection, first))["outcome"] == "completed"
        second = await enqueue(connection, "sleep", {"seconds": 0})
        why = await operations.why(second)
        assert why is not None
        assert why[0] == "no_worker"
        assert (await live(connection, second))["claimed_by"] is None
        assert await operations.drain_worker(name, drained=False)
        assert (await ended(connection, second))["outcome"] == "completed"
        assert await state() == "alive"
        assert not await operations.drain_worker("none", drained=True)
