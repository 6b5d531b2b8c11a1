"""A response of the model that came whole is stored before anything else: a death does not let it be paid for again."""

import asyncio
from pathlib import Path

import pytest

from extensions.agents.tests.system.model_server import OURS, Desk, ModelServer, calls, says, settings
from extensions.agents.tests.system.shared import shared_model
from surelane.calls import Connection
from tests.processes import until
from tests.sql.migrations import connected
from tests.system.slack_stand import slack_stand
from tests.system.worker import ended, worker

model = shared_model


async def stored(connection: Connection, identity: int) -> bool:
    """Return whether the response with the answer is stored."""
    kept = "select 1 from agent.step where event_id = $1 and name = 'model' and result::text like '%Three.%'"
    return bool(await connection.fetchval(kept, identity))


@pytest.mark.parametrize(("method", "tool"), [("chat.startStream", False), ("chat.stopStream", True)])
async def test_a_worker_that_dies_while_slack_is_told_pays_for_no_response_again(
    database: str, model: ModelServer, tmp_path: Path, method: str, tool: bool
) -> None:
    plan = f"{method[5:]}{tool}"
    look = calls(("note", {"log": str(tmp_path / "log"), "text": "noted"}))
    async with connected(database) as connection, slack_stand(connection) as slack:
        desk = Desk(slack, model, connection)
        given = settings(model, slack, **OURS, SURELANE_SESSION_GRACE="200ms")
        slack.fail("slow", method, delay=600)
        async with worker(database, **given) as first:
            identity, asked = await desk.ask(
                plan, *([look] if tool else []), says("One. ", "Two. ", "Three.")
            )
            async with asyncio.timeout(20):
                while not await stored(connection, identity):  # noqa: ASYNC110 - another process stores it
                    await asyncio.sleep(0.05)
            await until(lambda: not slack.simulator.faults.active, what="the call")
            first.child.kill()
            await first.child.wait()
        async with worker(database, **given):
            assert (await ended(connection, identity))["outcome"] == "completed"
        assert len(model.asked[plan]) == (2 if tool else 1)
        assert slack.answers(asked)[-1] == "One. Two. Three."
        assert not any(reply.streaming for reply in slack.replies(asked))
