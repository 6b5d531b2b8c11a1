"""A real worker runs the example's handlers against a simulated Slack."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from surelane.calls import Connection
from tests.processes import service, until
from tests.system.shared import shared_connection, shared_slack
from tests.system.slack_stand import Stand
from tests.system.worker import ended, environment

TEAM = Path(__file__).parents[2] / "examples/team"


connection, stand = shared_connection, shared_slack


@pytest.fixture(scope="module")
async def slack(shared_database: str, stand: Stand) -> AsyncIterator[Stand]:
    settings = {"SURELANE_HANDLERS": "team_bot:handlers", "SLACK_API_URL": stand.api}
    env = environment(shared_database, **settings, PYTHONPATH=str(TEAM))
    async with service("surelane_worker", env, imported=False):  # only a new interpreter reads PYTHONPATH
        yield stand


async def test_answer_is_streamed_and_a_reminder_scheduled(slack: Stand, connection: Connection) -> None:
    identity, message = await slack.mention("why is the sky blue")
    row = await ended(connection, identity)
    assert (row["outcome"], json.loads(row["result"])) == ("completed", {"words": 5})
    assert slack.answers(message) == ["why is the sky blue — that is what I understood."]
    reminder = await connection.fetchrow(
        "select * from agent.event where kind = 'reminder' and item_key = $1", f"reminder:{row['item_key']}"
    )
    assert reminder is not None
    assert (reminder["vt"] - row["enqueued_at"]).total_seconds() > 3500


async def test_question_about_nothing_is_discarded(slack: Stand, connection: Connection) -> None:
    identity, message = await slack.mention("nothing")
    row = await ended(connection, identity)
    assert (row["outcome"], row["reason"], slack.answers(message)) == ("failed", "asked for nothing", [])


async def test_shortcut_opens_a_modal_whose_question_is_answered_in_a_direct_message(
    slack: Stand, connection: Connection
) -> None:
    row = await ended(connection, await slack.store(slack.shortcut("ask")))
    assert (row["outcome"], row["reason"]) == ("completed", None)
    (shown,) = slack.simulator.interactions.views.values()
    payload = slack.submission(shown.content, {"question": {"text": {"value": "why"}}})
    row = await ended(connection, await slack.store(payload))
    assert (row["outcome"], row["reason"]) == ("completed", None)
    messages = slack.simulator.workspace.direct_messages(slack.user().id).messages.values()
    assert [message.text for message in messages][-1] == "You asked: why"


async def test_feedback_is_kept_as_the_result(slack: Stand, connection: Connection) -> None:
    _, message = await slack.mention("why")

    def asks() -> bool:
        blocks = [block for reply in slack.replies(message) for block in reply.blocks]
        return any(block["type"] == "context_actions" for block in blocks)

    await until(asks, what="feedback")
    action = {"type": "feedback_buttons", "action_id": "feedback", "value": "good"}
    payload = slack.click(slack.replies(message)[0], action)
    row = await ended(connection, await slack.store(payload))
    assert (row["outcome"], json.loads(row["result"])) == ("completed", {"feedback": "good"})
