"""A network that loses answers, while connections seem open, holds up no event for long."""

from surelane.calls import Connection
from tests.databases import as_role
from tests.processes import until
from tests.system.half_open import half_open
from tests.system.worker import ended, enqueue, worker


async def test_a_claim_whose_answer_is_lost_is_released_by_its_own_worker(
    database: str, connection: Connection
) -> None:
    """The claim committed, so the event would else wait for the rescue after five minutes."""
    async with half_open(as_role(database, "surelane_worker")) as proxy, worker(proxy.uri) as running:
        first = await enqueue(connection, "nothing", group_key="g")
        await ended(connection, first)
        proxy.mute(listening=True)
        lost = await enqueue(connection, "nothing", group_key="g")
        row = await ended(connection, lost, within=60)
        assert (row["attempts"], len(row["claimed"])) == (1, 2)
        assert any("whose answer was lost" in line for line in running.output)


async def test_idle_workers_notice_that_their_connections_are_half_open(
    database: str, connection: Connection
) -> None:
    async with half_open(as_role(database, "surelane_worker")) as proxy, worker(proxy.uri) as running:
        await ended(connection, await enqueue(connection, "nothing"))
        proxy.mute()
        row = await ended(connection, await enqueue(connection, "nothing"), within=45)
        await until(lambda: any('"polls"' in line for line in running.output), what="the failed poll")
    assert row["outcome"] == "completed"
