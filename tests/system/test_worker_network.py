"""A network that loses answers, while connections seem open, holds up no event for long."""

from contextlib import AsyncExitStack
from pathlib import Path

from surelane.calls import Connection
from tests.databases import as_role
from tests.processes import until
from tests.system.half_open import half_open
from tests.system.worker import ended, enqueue, worker


async def test_idle_workers_notice_that_their_connections_are_half_open(
    database: str, connection: Connection
) -> None:
    async with half_open(as_role(database, "surelane_worker")) as proxy, AsyncExitStack() as stack:
        fleet = [await stack.enter_async_context(worker(proxy.uri)) for _ in range(3)]
        await ended(connection, await enqueue(connection, "nothing"))
        proxy.mute()
        row = await ended(connection, await enqueue(connection, "nothing"), within=60)
        await until(
            lambda: all(any('"polls"' in line for line in each.output) for each in fleet),
            within=60,
            what="the failed polls",
        )
    assert row["outcome"] == "completed"


async def test_an_outcome_is_stored_once_although_its_answer_is_lost(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    """The second settle is stale: that is no error, as the first one counts."""
    path = tmp_path / "go-on"
    async with half_open(as_role(database, "surelane_worker")) as proxy, worker(proxy.uri) as running:
        await ended(connection, await enqueue(connection, "nothing"))  # leaves a connection for settles
        event = await enqueue(connection, "wait-for-file", {"path": str(path)}, group_key="g")
        await until(Path(f"{path}.{event}").exists, what="the handler")
        proxy.mute()
        path.touch()
        row = await ended(connection, event)
        await until(lambda: any("sent twice" in line for line in running.output), within=60)
    assert (row["outcome"], row["attempts"], len(row["claimed"])) == ("completed", 1, 1)
    assert not any('"stale settle"' in line for line in running.output)
