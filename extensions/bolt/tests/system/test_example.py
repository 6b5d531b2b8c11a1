"""A real worker runs the example's Bolt app, as it is, against a simulated Slack."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from extensions.bolt.tests.system.bolt import Bolt, bolt

ERRORS = {"response_action": "errors", "errors": {"days": "A number, please"}}
EXAMPLE = Path(__file__).parents[4] / "examples/bolt"


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

    row = await app.completed(await app.happens(_message(app, "something else")))
    assert row["result"] == '{"unhandled": "no listener"}'


async def test_event_listener_with_the_client(app: Bolt) -> None:
    item = {"type": "message", "channel": app.slack.room().id, "ts": "1700000000.000100"}
    event = {"type": "reaction_added", "user": app.slack.user().id, "reaction": "tada", "item": item}
    await app.completed(await app.happens(event))
    assert app.said()[-1] == "Thank you for :tada:"


async def test_command_is_answered_at_once_and_its_lazy_listener_works(app: Bolt) -> None:
    assert await app.asks(app.slack.command("/deploy", "web")) == "Deploying web…"
    assert app.said()[-1] == "Deployed web."

    assert await app.asks(app.slack.command("/deploy")) == {
        "text": "Deploy what?",
        "response_type": "ephemeral",
    }


async def test_action_listener_responds_and_says(app: Bolt) -> None:
    identity, message = await app.slack.mention("hello")
    await app.completed(identity)
    reply = app.slack.replies(message)[-1]
    payload = app.slack.click(reply, {"type": "button", "action_id": "approve", "block_id": "b"})
    assert await app.asks(payload) is None
    assert app.slack.answers(message)[-1] == "Approved."
    assert app.said()[-1] == f"Approved by <@{app.slack.user().id}>"


async def test_shortcuts_open_the_modal_and_its_listeners_take_it(app: Bolt) -> None:
    for sort in ("shortcut", "message_action"):
        assert await app.asks(app.slack.shortcut("book", sort)) is None
    content = list(app.slack.simulator.interactions.views.values())[-1].content

    def submitted(days: str) -> dict[str, Any]:
        return app.slack.submission(content, {"days": {"days": {"value": days}}})

    assert await app.asks(submitted("many")) == ERRORS
    assert await app.asks(submitted("3")) is None
    assert app.whispered()[-1] == "Booked for 3 days"
    assert await app.asks(app.slack.submission(content)) is None
    assert app.whispered()[-1] == "Another time, then"


async def test_options_listener_fills_a_menu(app: Bolt) -> None:
    about = {"team": {"id": app.slack.simulator.workspace.team_id}, "user": {"id": app.slack.user().id}}
    menu = {"type": "block_suggestion", "action_id": "city", "block_id": "city", "value": "Ber"}
    answer = await app.asks(menu | about)
    assert [option["value"] for option in answer["options"]] == ["Berlin", "Bern"]


@pytest.mark.parametrize(
    "context", [{}, {"channel_id": "C1", "team_id": "T1"}], ids=["alone", "beside a channel"]
)
async def test_assistant_greets_and_answers(app: Bolt, context: dict[str, str]) -> None:
    """Bolt keeps what the person looks at in the metadata of the first reply: it must find that, or nothing."""
    workspace, ada = app.slack.simulator.workspace, app.slack.user().id
    room = workspace.direct_messages(ada)
    first = workspace.post(room, ada, "New thread")
    about = {"user_id": ada, "channel_id": room.id, "thread_ts": first.ts, "context": context}
    await app.completed(await app.happens({"type": "assistant_thread_started", "assistant_thread": about}))
    for text in ("good day", "good night"):
        said = workspace.post(room, ada, text, thread_ts=first.ts)
        place = {"channel": room.id, "channel_type": "im", "ts": said.ts, "thread_ts": first.ts}
        await app.completed(await app.happens(_message(app, text) | place))
    answers = [reply.text for reply in room.replies(first.ts) if reply.user != ada]
    assert answers == ["How can I help?", "You said: good day", "You said: good night"]


def _message(app: Bolt, text: str) -> dict[str, Any]:
    place = {"channel": app.slack.room().id, "channel_type": "channel", "user": app.slack.user().id}
    return {"type": "message", **place, "text": text, "ts": app.slack.simulator.workspace.next_ts()}
