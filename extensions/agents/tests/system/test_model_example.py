"""The example of an agent as it stands: a simulated Slack, a local model server, and the example's MCP server."""

import json
import sys
from pathlib import Path

from extensions.agents.tests.system.model_server import Desk, calls, model_server, says, settings
from surelane.calls import Connection
from tests.processes import until
from tests.system.slack_stand import Person, slack_stand
from tests.system.worker import ended, worker

FOLDER = Path(__file__).parents[4] / "examples/agent"


async def test_agent_finds_a_ticket_restarts_after_approval_and_takes_feedback(
    database: str, connection: Connection
) -> None:
    given = {"SURELANE_HANDLERS": "examples.agent.agent:handlers", "PYTHON": sys.executable}
    async with (
        slack_stand(connection) as slack,
        model_server() as model,
        worker(database, **settings(model, slack, **given)),
    ):
        desk = Desk(slack, model, connection)
        identity, asked = await desk.ask(
            "slow",
            calls(("tickets_search", {"word": "API"}), ("on_call", {"service": "api"})),
            calls(("restart", {"service": "api", "reason": "T1"}), text=["T1 says that it is slow."]),
            says("It was restarted."),
        )
        await until(lambda: len(slack.replies(asked)) == 3, within=60, what="the question")
        question, ada = slack.replies(asked)[-1], Person(slack, "ada")
        await ended(connection, await ada.press(question, 0), within=60)
        row = await ended(connection, identity, within=60)
        assert (row["outcome"], json.loads(row["result"])["answer"]) == ("completed", "It was restarted.")
        assert desk.told("slow") == ['{"T1":"api answers slowly"}', "Ada", "api was restarted: T1"]
        steps, first, _, answer = slack.replies(asked)
        assert (steps.only_tasks, len(steps.blocks[0]["tasks"])) == (True, 3)
        assert (first.text, answer.text) == ("T1 says that it is slow.", "It was restarted.")

        thumbs = answer.blocks[0]
        click = await ada.click(answer, thumbs["elements"][0], thumbs["block_id"], value="good")
        assert await desk.result(click) == {"rated": "good"}
        rated = "select model from agent.feedback where event_id = $1"
        assert await connection.fetchval(rated, identity) == "local"


def test_example_is_small() -> None:
    assert sum(len(file.read_text().splitlines()) for file in FOLDER.glob("*.*")) <= 150
