"""A mention with a word goes to the route of that word, in a bot under test."""

import re

import pytest

from surelane.testing import Slack, assert_replied
from surelane_dev.testing.story import Story
from surelane_worker import Context, Event, Handlers


@pytest.fixture
def handlers() -> Handlers:
    handlers = Handlers()

    @handlers.on("slack.app_mention")
    async def plain(event: Event, ctx: Context) -> None:
        await ctx.slack.reply(event, "What do you want?")

    @handlers.mention(re.compile(r"^deploy (\w+)"))
    async def deploy(event: Event, ctx: Context) -> None:
        assert event.match is not None
        await ctx.slack.reply(event, f"Deploying {event.match[1]}")

    @handlers.mention("aloud")
    async def aloud(event: Event, ctx: Context) -> None:
        await ctx.slack.reply(event, "Hear me", thread_ts=None)

    return handlers


async def test_a_worded_route_comes_before_the_plain_handler(slack: Slack) -> None:
    assert_replied(await slack.mention("deploy api"), "Deploying api")
    assert_replied(await slack.mention("hello"), "What do you want?")


async def test_an_edited_mention_is_routed_by_its_new_text(slack: Slack) -> None:
    sent = await slack.message("deploi api")
    assert_replied(await slack.edit(sent, "@surelane deploy api"), "Deploying api")
    assert_replied(sent, "Deploying api")


async def test_a_failed_check_tells_what_was_written_outside_the_thread(slack: Slack) -> None:
    sent = await slack.mention("aloud")
    with pytest.raises(AssertionError, match=r"nothing\noutside the thread it wrote 'Hear me'\nevent 1"):
        assert_replied(sent, "Hear me")


def test_a_story_tells_that_nothing_took_the_event() -> None:
    story = Story(1, "slack.message.im", None, 1, "completed", None, [], {"unhandled": "no listener"}, {})
    assert str(story) == "event 1, slack.message.im, after 1 attempt, is completed: no listener"
