"""A real worker runs the example's handlers against a simulated Slack."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from surelane.calls import Connection
from surelane_dev.simulator.posting.payloads import action_payload, view_payload
from surelane_dev.simulator.workspace.model import JSON, Message
from tests.processes import service, until
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


async def test_shortcut_opens_a_modal_whose_question_is_answered_in_a_direct_message(
    slack: Stand, connection: Connection
) -> None:
    workspace, interactions = slack.simulator.workspace, slack.simulator.interactions
    ada = workspace.user("ada")
    assert ada is not None
    shortcut = {
        "type": "shortcut",
        "callback_id": "ask",
        "trigger_id": interactions.new_trigger(ada.id),
        "user": {"id": ada.id},
    }
    row = await ended(connection, await slack.queue.insert_event(json.dumps(shortcut)))
    assert (row["outcome"], row["reason"]) == ("completed", None)
    (shown,) = interactions.views.values()
    view = {**shown.content, "state": {"values": {"question": {"text": {"value": "why"}}}}}
    payload = view_payload(workspace, interactions, kind="view_submission", view=view, user=ada)
    row = await ended(connection, await slack.queue.insert_event(json.dumps(payload)))
    assert (row["outcome"], row["reason"]) == ("completed", None)
    messages = workspace.direct_messages(ada.id).messages.values()
    assert [message.text for message in messages][-1] == "You asked: why"


async def test_feedback_is_kept_as_the_result(slack: Stand, connection: Connection) -> None:
    _, message = await slack.mention("why")
    await until(
        lambda: any(block["type"] == "context_actions" for block in _blocks(slack, message)), what="feedback"
    )
    workspace = slack.simulator.workspace
    ada, reply = workspace.user("ada"), workspace.channels[message.channel].replies(message.ts)[0]
    assert ada is not None
    action = {"type": "feedback_buttons", "action_id": "feedback", "value": "good"}
    payload = action_payload(workspace, slack.simulator.interactions, message=reply, user=ada, action=action)
    row = await ended(connection, await slack.queue.insert_event(json.dumps(payload)))
    assert (row["outcome"], json.loads(row["result"])) == ("completed", {"feedback": "good"})


def _blocks(slack: Stand, message: Message) -> list[JSON]:
    replies = slack.simulator.workspace.channels[message.channel].replies(message.ts)
    return [block for reply in replies for block in reply.blocks]
