"""A real worker runs the example's Bolt app, as it is, against a simulated Slack."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from surelane_dev.simulator.posting.payloads import action_payload, command_form, view_payload
from surelane_dev.simulator.webapi.view_content import placed
from tests.databases import as_role
from tests.system.bolt import Bolt, bolt
from tests.system.ingest_client import served

EXAMPLE = Path(__file__).parents[2] / "examples/bolt"


@pytest.fixture(scope="module")
async def app(shared_database: str) -> AsyncIterator[Bolt]:
    async with bolt(shared_database, "app:app", PYTHONPATH=str(EXAMPLE)) as running:
        yield running


async def test_event_listener_and_middleware(app: Bolt) -> None:
    identity, message = await app.slack.mention("hello")
    await app.completed(identity)
    assert app.slack.answers(message) == [f"Hello <@{message.user}>!", "Shall I?"]


async def test_message_listener_with_a_pattern(app: Bolt) -> None:
    await app.completed(await app.happens(_message(app, "how is the weather?")))
    assert app.said()[-1] == "I know nothing about the weather."


async def test_message_that_no_listener_takes_is_completed(app: Bolt) -> None:
    row = await app.completed(await app.happens(_message(app, "something else")))
    assert row["result"] == '{"unhandled": "no listener"}'


async def test_event_listener_with_the_client(app: Bolt) -> None:
    item = {"type": "message", "channel": _channel(app), "ts": "1700000000.000100"}
    await app.completed(
        await app.happens({"type": "reaction_added", "user": app.ada.id, "reaction": "tada", "item": item})
    )
    assert app.said()[-1] == "Thank you for :tada:"


async def test_command_is_answered_at_once_and_its_lazy_listener_works(app: Bolt) -> None:
    assert await app.asks(_command(app, "web")) == "Deploying web…"
    assert app.said()[-1] == "Deployed web."


async def test_command_is_answered_with_parts(app: Bolt) -> None:
    assert await app.asks(_command(app, "")) == {"text": "Deploy what?", "response_type": "ephemeral"}


async def test_action_listener_responds_and_says(app: Bolt) -> None:
    identity, message = await app.slack.mention("hello")
    await app.completed(identity)
    workspace, interactions = app.slack.simulator.workspace, app.slack.simulator.interactions
    reply = workspace.channels[message.channel].replies(message.ts)[-1]
    action = {"type": "button", "action_id": "approve", "block_id": "b"}
    payload = action_payload(workspace, interactions, message=reply, user=app.ada, action=action)
    assert await app.asks(payload) is None
    assert app.slack.answers(message)[-1] == "Approved."
    assert app.said()[-1] == f"Approved by <@{app.ada.id}>"


async def test_shortcuts_open_the_modal_and_its_listeners_take_it(app: Bolt) -> None:
    workspace, interactions = app.slack.simulator.workspace, app.slack.simulator.interactions
    for sort in ("shortcut", "message_action"):
        shortcut = {
            "type": sort,
            "callback_id": "book",
            "team": {"id": workspace.team_id},
            "trigger_id": interactions.new_trigger(app.ada.id),
            "user": {"id": app.ada.id},
        }
        assert await app.asks(shortcut) is None
    shown = list(interactions.views.values())[-1]

    def submitted(days: str) -> dict[str, Any]:
        view = {**shown.content, "state": {"values": {"days": {"days": {"value": days}}}}}
        return view_payload(workspace, interactions, kind="view_submission", view=view, user=app.ada)

    errors = {"response_action": "errors", "errors": {"days": "A number, please"}}
    assert await app.asks(submitted("many")) == errors
    assert await app.asks(submitted("3")) is None
    assert app.whispered()[-1] == "Booked for 3 days"
    closed = view_payload(workspace, interactions, kind="view_closed", view=shown.content, user=app.ada)
    assert await app.asks(closed) is None
    assert app.whispered()[-1] == "Another time, then"


async def test_options_listener_fills_a_menu(app: Bolt) -> None:
    answer = await app.asks(_suggestion(app, "Ber"))
    assert [option["value"] for option in answer["options"]] == ["Berlin", "Bern"]


async def test_assistant_greets_and_answers(app: Bolt) -> None:
    workspace = app.slack.simulator.workspace
    room = workspace.direct_messages(app.ada.id)
    first = workspace.post(room, app.ada.id, "New thread")
    about = {
        "user_id": app.ada.id,
        "channel_id": room.id,
        "thread_ts": first.ts,
        "context": {"channel_id": room.id, "team_id": workspace.team_id},
    }
    await app.completed(await app.happens({"type": "assistant_thread_started", "assistant_thread": about}))
    said = workspace.post(room, app.ada.id, "good day", thread_ts=first.ts)
    message = _message(app, "good day") | {
        "channel": room.id,
        "channel_type": "im",
        "ts": said.ts,
        "thread_ts": first.ts,
    }
    await app.completed(await app.happens(message))
    answers = [reply.text for reply in room.replies(first.ts) if reply.user != app.ada.id]
    assert answers == ["How can I help?", "You said: good day"]


async def test_answers_travel_in_the_http_response(app: Bolt, shared_database: str) -> None:
    workspace, interactions = app.slack.simulator.workspace, app.slack.simulator.interactions
    state = {"values": {"days": {"days": {"value": "many"}}}}
    view = placed(workspace, {"type": "modal", "callback_id": "booking", "blocks": []}) | {"state": state}
    submission = view_payload(workspace, interactions, kind="view_submission", view=view, user=app.ada)
    async with served(as_role(shared_database, "surelane_ingest")) as ingest:
        answer = await ingest.slack.form("/slack/events", _command(app, "web"))
        assert (answer.status, answer.body.decode()) == (200, "Deploying web…")
        answer = await ingest.slack.form("/slack/events", {"payload": json.dumps(submission)})
        errors = {"response_action": "errors", "errors": {"days": "A number, please"}}
        assert json.loads(answer.body) == errors
        answer = await ingest.slack.form("/slack/events", {"payload": json.dumps(_suggestion(app, "Bre"))})
        assert [option["value"] for option in json.loads(answer.body)["options"]] == ["Bremen"]


def _suggestion(app: Bolt, value: str) -> dict[str, Any]:
    return {
        "type": "block_suggestion",
        "action_id": "city",
        "block_id": "city",
        "value": value,
        "team": {"id": app.slack.simulator.workspace.team_id},
        "user": {"id": app.ada.id},
    }


def _channel(app: Bolt) -> str:
    general = app.slack.simulator.workspace.channel("general")
    assert general is not None
    return general.id


def _message(app: Bolt, text: str) -> dict[str, Any]:
    workspace = app.slack.simulator.workspace
    return {
        "type": "message",
        "channel": _channel(app),
        "channel_type": "channel",
        "user": app.ada.id,
        "text": text,
        "ts": workspace.next_ts(),
    }


def _command(app: Bolt, text: str) -> dict[str, Any]:
    workspace, interactions = app.slack.simulator.workspace, app.slack.simulator.interactions
    general = workspace.channel("general")
    assert general is not None
    return dict(
        command_form(workspace, interactions, command="/deploy", text=text, channel=general, user=app.ada)
    )
