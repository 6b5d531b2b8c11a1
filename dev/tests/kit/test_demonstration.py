"""The demonstration's first answer offers what to try, and each of its buttons does the real thing."""

import pytest

from surelane.testing import Bot, Message, Slack
from surelane_dev import demonstration
from surelane_worker import Handlers
from surelane_worker.worker_settings import FAILURE_REPLY

APPROVE = "0"


@pytest.fixture
def handlers() -> Handlers:
    return demonstration.handlers


@pytest.fixture
async def offer(slack: Slack) -> Message:
    return (await slack.mention("hello")).replies[-1]


def messages(slack: Slack) -> list[Message]:
    """Return what the bot has said, oldest first."""
    channel = slack.simulator.workspace.channel("general")
    assert channel is not None
    return [message for message in channel.messages.values() if message.by_app]


def said(slack: Slack) -> list[str]:
    return [message.text for message in messages(slack)]


def test_the_first_answer_has_a_button_for_each_thing_to_try(offer: Message) -> None:
    assert "hello" in offer.text
    (actions,) = [block for block in offer.blocks if block["type"] == "actions"]
    assert [button["action_id"] for button in actions["elements"]] == list(demonstration.OFFERS)


async def test_an_approval_waits_for_a_person(slack: Slack, offer: Message) -> None:
    await slack.click(offer, "try_approval")
    await slack.click(messages(slack)[-1], value=APPROVE, user="grace")
    assert said(slack)[-1] == "<@U0GRACE001> chose Approve."


async def test_a_form_is_answered_in_the_thread(slack: Slack, offer: Message) -> None:
    await slack.click(offer, "try_form")
    await slack.submit({"text": "peace"})
    assert said(slack)[-1] == "<@U0ADA00001> wishes for peace."


async def test_a_stream_grows(slack: Slack, offer: Message) -> None:
    await slack.click(offer, "try_stream")
    assert said(slack)[-1] == "This answer grows piece by piece, as that of a model does."


async def test_a_reminder_sleeps_for_a_minute(bot: Bot, slack: Slack, offer: Message) -> None:
    await slack.click(offer, "try_reminder")
    assert said(slack)[-1].startswith("I will be back")
    await bot.advance("1m")
    assert said(slack)[-1] == "The minute is over."


async def test_a_failure_says_where_the_operator_finds_it(bot: Bot, slack: Slack, offer: Message) -> None:
    await slack.click(offer, "try_failure")
    await bot.advance("2m")
    (failed,) = [event for event in bot.events if event.state == "failed"]
    told, sorry = said(slack)[-2:]
    assert told.endswith(f"/console/events/{failed.id}")
    assert sorry == FAILURE_REPLY
