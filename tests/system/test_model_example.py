"""The example of an agent as it stands: a simulated Slack, a local model server, and the example's MCP server."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from surelane.calls import Connection
from tests.processes import until
from tests.system.model_server import ModelServer, calls, model_server, says, settings
from tests.system.slack_stand import Stand, slack_stand
from tests.system.test_asks import Person, replies
from tests.system.worker import ended, worker

FOLDER = Path(__file__).parents[2] / "examples/agent"


@pytest.fixture
async def stand(database: str, connection: Connection) -> AsyncIterator[tuple[Stand, ModelServer]]:
    async with slack_stand(connection) as slack, model_server() as model:
        given = {"SURELANE_HANDLERS": "examples.agent.agent:handlers", "PYTHON": sys.executable}
        async with worker(database, SLACK_API_URL=slack.api, **settings(model, **given)):
            yield slack, model


async def test_agent_finds_a_ticket_restarts_after_approval_and_takes_feedback(
    stand: tuple[Stand, ModelServer], connection: Connection
) -> None:
    slack, model = stand
    model.plans["slow"] = [
        calls(("tickets_search", {"word": "API"}), ("on_call", {"service": "api"})),
        calls(("restart", {"service": "api", "reason": "T1"}), text=["T1 says that it is slow."]),
        says("It was restarted."),
    ]
    identity, asked = await slack.mention("plan:slow why is api slow?")
    await until(lambda: len(replies(slack, asked)) == 3, within=60, what="the question")
    question, ada = replies(slack, asked)[-1], Person(slack, "ada")
    await ended(connection, await ada.press(question, 0), within=60)
    row = await ended(connection, identity, within=60)
    assert (row["outcome"], json.loads(row["result"])["answer"]) == ("completed", "It was restarted.")
    told = [each["content"] for each in model.asked["slow"][-1]["messages"] if each["role"] == "tool"]
    assert told == ['{"T1":"api answers slowly"}', "Ada", "api was restarted: T1"]
    steps, first, _, answer = replies(slack, asked)
    assert (steps.only_tasks, len(steps.blocks[0]["tasks"])) == (True, 3)
    assert (first.text, answer.text) == ("T1 says that it is slow.", "It was restarted.")

    thumbs = answer.blocks[0]
    click = await ada.click(answer, thumbs["elements"][0], thumbs["block_id"], value="good")
    row = await ended(connection, click)
    assert json.loads(row["result"]) == {"rated": "good"}
    assert (
        await connection.fetchval("select model from agent.feedback where event_id = $1", identity) == "local"
    )


def test_example_is_small() -> None:
    assert sum(len(file.read_text().splitlines()) for file in FOLDER.glob("*.*")) <= 150
