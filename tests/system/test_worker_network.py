"""A network that loses answers, while connections seem open, holds up no event for long."""

from pathlib import Path

from surelane.calls import Connection
from tests.databases import as_role
from tests.processes import until
from tests.system.half_open import half_open
from tests.system.worker import ended, enqueue, worker


async def test_requests_and_answers_that_connections_lose_cost_no_attempt(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    """A lost claim would else wait five minutes for the rescue, a lost settle 30 seconds for the driver."""
    path = tmp_path / "go-on"
    async with half_open(as_role(database, "surelane_worker")) as proxy, worker(proxy.uri) as running:
        await ended(connection, await enqueue(connection, "nothing", group_key="g"))
        proxy.mute()
        row = await ended(connection, await enqueue(connection, "nothing", group_key="g"), within=60)
        assert (row["attempts"], len(row["claimed"])) == (1, 2)
        event = await enqueue(connection, "wait-for-file", {"path": str(path)}, group_key="g")
        await until(Path(f"{path}.{event}").exists, what="the handler")
        following = await enqueue(connection, "nothing", group_key="g")
        proxy.swallow()
        proxy.restore()
        path.touch()
        row = await ended(connection, event, within=20)
        assert (row["outcome"], row["attempts"], len(row["claimed"])) == ("completed", 1, 1)
        assert (await ended(connection, following, within=60))["outcome"] == "completed"
    assert any("whose answer was lost" in line for line in running.output)
    assert not any('"stale settle"' in line for line in running.output)
