"""A person who spoke to the bot is told when that failed, where the team has no failure hook for it."""

import pytest

from surelane.testing import Bot, Slack, assert_replied
from surelane_worker import Context, Discard, Event, Handlers
from surelane_worker.worker_settings import FAILURE_REPLY


@pytest.fixture
def handlers() -> Handlers:
    handlers = Handlers()

    @handlers.on("slack.app_mention", "slack.message.im", "slack.reaction_added", max_attempts=1)
    async def failing(event: Event, ctx: Context) -> None:  # noqa: ARG001 - a handler takes both arguments
        raise LookupError("no such figure")

    @handlers.command("/report")
    async def report(event: Event, ctx: Context) -> Discard:
        await ctx.slack.reply(event, "There is no such report.")
        return Discard("no_report")

    return handlers


async def test_a_person_is_told_once_that_it_failed(bot: Bot, slack: Slack) -> None:
    sent = await slack.mention("hello")
    assert_replied(sent, FAILURE_REPLY)
    assert len(sent.replies) == 1
    assert_replied(await slack.direct_message("psst"), FAILURE_REPLY)
    assert {event.state for event in bot.events} == {"failed", "completed"}


async def test_what_a_handler_gave_up_it_has_answered_itself(slack: Slack) -> None:
    sent = await slack.command("/report")
    assert [reply.text for reply in sent.replies] == ["There is no such report."]


async def test_what_nobody_said_to_the_bot_is_not_answered(bot: Bot, slack: Slack) -> None:
    sent = await slack.message("to people")
    await slack.react(sent, "eyes")
    assert [event.state for event in bot.events] == ["failed"]
    assert sent.replies == []
