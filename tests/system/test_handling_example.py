"""A real worker runs the example's handlers against a simulated Slack."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from surelane.calls import Connection
from tests.processes import service
from tests.system.slack_stand import Stand, slack_stand
from tests.system.worker import ended, environment

TEAM = Path(__file__).parents[2] / "examples/team"


@pytest.fixture
async def slack(database: str, connection: Connection) -> AsyncIterator[Stand]:
    async with slack_stand(connection) as stand:
        settings = {"SURELANE_HANDLERS": "team_bot:handlers", "SLACK_API_URL": stand.api}
        env = environment(database, **settings, PYTHONPATH=str(TEAM))
        async with service("surelane_worker", env, imported=False):  # only a new interpreter reads PYTHONPATH
            yield stand


async def test_answer_is_streamed_and_a_reminder_scheduled(slack: Stand, connection: Connection) -> None:
    identity, message = await slack.mention("why is the sky blue")
    row = await ended(connection, identity)
    assert (row["outcome"], json.loads(row["result"])) == ("completed", {"words": 5})
    assert slack.answers(message) == ["why is the sky blue — that is what I understood."]
    reminder = await connection.fetchrow("select * from agent.event where kind = 'reminder'")
    assert reminder is not None
    assert reminder["item_key"] == f"reminder:{row['item_key']}"
    assert (reminder["vt"] - row["enqueued_at"]).total_seconds() > 3500


async def test_question_about_nothing_is_discarded(slack: Stand, connection: Connection) -> None:
    identity, message = await slack.mention("nothing")
    row = await ended(connection, identity)
    assert (row["outcome"], row["reason"], slack.answers(message)) == ("failed", "asked for nothing", [])
