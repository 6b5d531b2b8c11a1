"""Legacy dialogs: an asynchronous Bolt app opens one, a person fills it in, and Slack refuses what Slack refuses."""

from typing import Any

import pytest
from slack_bolt.async_app import AsyncAck, AsyncApp
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

from surelane.testing import Slack, assert_replied
from surelane_dev.simulator.workspace.dialogs import dialog_problems

MEALS = [{"label": "Soup", "value": "soup"}, {"label": "Salad", "value": "salad"}]
MEAL = {"type": "select", "name": "meal", "label": "Meal", "options": MEALS}
NAME = {"type": "text", "name": "name", "label": "Your name", "max_length": 10}
NOTE = {"type": "textarea", "name": "note", "label": "Note", "optional": True}
DIALOG: dict[str, Any] = {
    "callback_id": "lunch",
    "title": "Lunch",
    "submit_label": "Order",
    "state": "today",
    "notify_on_cancel": True,
    "elements": [MEAL, NAME, NOTE],
}

TEN = "A dialog must have between 1 and 10 elements"


@pytest.fixture
def handlers(surelane_slack: str) -> AsyncApp:  # noqa: ARG001 - the app calls it
    app = AsyncApp(token="xoxb-any")

    @app.command("/lunch")
    async def lunch(ack: AsyncAck, command: dict[str, Any], client: AsyncWebClient) -> None:
        await ack()
        await client.dialog_open(trigger_id=command["trigger_id"], dialog=DIALOG)

    @app.action({"type": "dialog_submission", "callback_id": "lunch"})
    async def ordered(ack: AsyncAck, body: dict[str, Any], client: AsyncWebClient) -> None:
        submitted = body["submission"]
        if submitted["name"] == "nobody":
            await ack({"errors": [{"name": "name", "error": "Somebody, please"}]})
            return
        await ack()
        text = f"{submitted['name']} has {submitted['meal']} {body['state']}, {submitted['note']}"
        await client.chat_postMessage(channel=body["channel"]["id"], text=text)

    @app.action({"type": "dialog_cancellation", "callback_id": "lunch"})
    async def cancelled(ack: AsyncAck, body: dict[str, Any], client: AsyncWebClient) -> None:
        await ack()
        await client.chat_postMessage(channel=body["channel"]["id"], text=f"no lunch {body['state']}")

    return app


async def test_a_dialog_is_submitted_refused_and_cancelled(slack: Slack) -> None:
    await slack.command("/lunch")
    sent = await slack.submit({"name": "much too long", "meal": "pie"})
    assert set(sent.answer["errors"]) == {"name", "meal"}
    sent = await slack.submit({"name": "nobody", "meal": "soup"})
    assert sent.answer["errors"] == {"name": "Somebody, please"}
    assert_replied(await slack.submit({"name": "Ada", "meal": "soup"}), "Ada has soup today, None")
    with pytest.raises(AssertionError, match="sees no modal"):
        await slack.submit()
    await slack.command("/lunch", channel="support")
    assert_replied(await slack.close(), "no lunch today")


def longest(number: int) -> str:
    return f"cannot be longer than {number} characters"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"title": "x" * 25}, f"The field `title` {longest(24)}"),
        ({"callback_id": None}, "The field `callback_id` must be a text"),
        ({"submit_label": "Order now"}, "The field `submit_label` can only be one word"),
        ({"elements": []}, TEN),
        ({"elements": [NAME] * 11}, TEN),
        ({"elements": [NAME | {"label": "x" * 49}]}, f"Element 0 field `label` {longest(48)}"),
        (
            {"elements": [NAME | {"max_length": 151}]},
            "Element 0 fields `min_length` and `max_length` must be between 0 and 150",
        ),
        (
            {"elements": [NAME, NAME | {"type": "date"}]},
            "Element 1 field `type` must be one of select, text, textarea",
        ),
        ({"elements": [MEAL | {"options": []}]}, "Element 0 must have between 1 and 100 options"),
        (
            {"elements": [MEAL | {"options": [{"label": "x" * 76, "value": "x"}]}]},
            f"Element 0 option field `label` {longest(75)}",
        ),
    ],
)
def test_dialogs_that_slack_refuses(change: dict[str, Any], problem: str) -> None:
    assert list(dialog_problems(DIALOG | change)) == [problem]


async def test_triggers_of_dialogs(slack: Slack) -> None:
    interactions = slack.simulator.interactions
    web = AsyncWebClient(token="xoxb-any", base_url=f"{interactions.public_url}/api/")
    trigger = interactions.new_trigger(slack.simulator.workspace.people()[0].id)
    assert (await web.dialog_open(trigger_id=trigger, dialog=DIALOG))["ok"]
    for wrong, change, error, messages in (
        (trigger, {}, "trigger_exchanged", None),
        ("1.2.3", {}, "invalid_trigger", None),
        ("x", {"elements": []}, "validation_errors", [f"[ERROR] {TEN}"]),
    ):
        with pytest.raises(SlackApiError) as caught:
            await web.dialog_open(trigger_id=wrong, dialog=DIALOG | change)
        answer = caught.value.response
        assert answer["error"] == error
        assert answer.get("response_metadata", {}).get("messages") == messages
