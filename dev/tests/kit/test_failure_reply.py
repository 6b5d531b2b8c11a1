"""A person who spoke to the bot is told when that failed, where the team has no failure hook for it."""

import pytest

from surelane.testing import Bot, Slack, assert_replied
from surelane_worker import Context, Discard, Event, Handlers
from surelane_worker.worker_settings import FAILURE_REPLY


@pytest.fixture
def handlers() -> Handlers:
    handlers = Handlers()

    kinds = "slack.app_mention", "slack.message.channels", "slack.message.im", "slack.reaction_added"

    @handlers.on(*kinds, max_attempts=1)
    async def failing(event: Event, ctx: Context) -> None:  # noqa: ARG001 - a handler takes both arguments
        raise LookupError("no such figure")

    @handlers.command("/report")
    async def report(event: Event, ctx: Context) -> Discard:
        await ctx.slack.reply(event, "There is no such report.")
        return Discard("no_report")

    return handlers


async def test_who_spoke_to_the_bot_alone_is_told_that_it_failed(bot: Bot, slack: Slack) -> None:
    sent = await slack.mention("hello")
    assert [reply.text for reply in sent.replies] == [FAILURE_REPLY]
    assert_replied(await slack.direct_message("psst"), FAILURE_REPLY)
    assert {event.state for event in bot.events} == {"failed", "completed"}
    given_up = await slack.command("/report")
    assert [reply.text for reply in given_up.replies] == ["There is no such report."]
    sent, before = await slack.message("to people"), len(bot.events)
    await slack.react(sent, "eyes")
    assert [event.state for event in bot.events[before:]] == ["failed"]
    assert sent.replies == []
