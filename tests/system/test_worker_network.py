"""A network that loses answers, while connections seem open, holds up no event for long."""

from pathlib import Path

import pytest

from surelane.calls import Connection
from tests.databases import as_role
from tests.processes import until
from tests.system.half_open import half_open
from tests.system.worker import ended, enqueue, worker

SETTLED = 20
"""Seconds until an outcome is settled again: the bound is 5 s, and without it the driver gives up after 30 s."""


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


@pytest.mark.parametrize("lost", ["requests", "answers"])
async def test_what_an_attempt_stores_is_stored_once_although_its_connection_is_half_open(
    database: str, connection: Connection, tmp_path: Path, lost: str
) -> None:
    """If only the answer is lost, the second settle is stale: that is no error, as the first one counts."""
    path = tmp_path / "go-on"
    async with half_open(as_role(database, "surelane_worker")) as proxy, worker(proxy.uri) as running:
        await ended(connection, await enqueue(connection, "nothing"))  # leaves a connection for settles
        event = await enqueue(connection, "wait-for-file", {"path": str(path)}, group_key="g")
        await until(Path(f"{path}.{event}").exists, what="the handler")
        following = await enqueue(connection, "nothing", group_key="g")
        if lost == "answers":
            proxy.mute()
        else:
            proxy.swallow()
            proxy.restore()
        path.touch()
        row = await ended(connection, event, within=SETTLED)
        if lost == "answers":
            await until(lambda: any("sent twice" in line for line in running.output), within=SETTLED)
        else:
            assert (await ended(connection, following, within=60))["outcome"] == "completed"
    assert (row["outcome"], row["attempts"], len(row["claimed"])) == ("completed", 1, 1)
    assert not any('"stale settle"' in line for line in running.output)
