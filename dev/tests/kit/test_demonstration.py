"""The demonstration's first answer offers what to try, and each of its buttons does the real thing."""

import pytest

from surelane.testing import Bot, Message, Slack
from surelane_dev import demonstration
from surelane_worker import Handlers
from surelane_worker.worker_settings import FAILURE_REPLY


@pytest.fixture
def handlers() -> Handlers:
    return demonstration.handlers


def messages(slack: Slack) -> list[Message]:
    """Return what the bot has said, oldest first."""
    channel = slack.simulator.workspace.channel("general")
    assert channel is not None
    return [message for message in channel.messages.values() if message.by_app]


async def test_each_button_of_the_first_answer_does_the_real_thing(bot: Bot, slack: Slack) -> None:
    def said() -> str:
        return messages(slack)[-1].text

    offer = (await slack.mention("hello")).replies[-1]
    assert "hello" in offer.text
    (actions,) = [block for block in offer.blocks if block["type"] == "actions"]
    assert [button["action_id"] for button in actions["elements"]] == list(demonstration.OFFERS)

    await slack.click(offer, "try_approval")
    await slack.click(messages(slack)[-1], value="0", user="grace")
    assert said() == "<@U0GRACE001> chose Approve."

    await slack.click(offer, "try_form")
    await slack.submit({"text": "peace"})
    assert said() == "<@U0ADA00001> wishes for peace."

    await slack.click(offer, "try_stream")
    assert said() == "This answer grows piece by piece, as that of a model does."

    await slack.click(offer, "try_reminder")
    assert said().startswith("I will be back")
    await bot.advance("1m")
    assert said() == "The minute is over."

    await slack.click(offer, "try_failure")
    await bot.advance("2m")
    (failed,) = [event for event in bot.events if event.state == "failed"]
    told, sorry = [message.text for message in messages(slack)[-2:]]
    assert told.endswith(f"/console/events/{failed.id}")
    assert sorry == FAILURE_REPLY
