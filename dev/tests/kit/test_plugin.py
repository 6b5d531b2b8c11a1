"""`surelane.testing`: a team's test talks to its bot, lets time pass, and kills its worker."""

import asyncio
import re
import time
from typing import Any

import pytest
from slack_sdk.web.async_client import AsyncWebClient

from dev.tests.kit.handlers import calls
from surelane.testing import Bot, Slack, assert_replied


async def test_each_way_to_talk_is_answered(bot: Bot, slack: Slack) -> None:
    """One test for all: they share the start."""
    sent = await slack.mention("hello")
    assert_replied(sent, "You said: hello")
    assert_replied(await slack.mention("again", thread=sent), re.compile("again$"))
    assert_replied(sent)
    assert_replied(await slack.direct_message("psst", user="grace"), "psst")
    assert_replied(await slack.command("/form"), "fill it in")
    assert_replied(await slack.submit({"name": "Ada"}), "Hello Ada")
    await slack.react(sent, "eyes")
    assert sent.replies[-1].text == "eyes"
    await slack.shortcut("page")
    assert await bot.webhook("ci", {"build": 1}) == 200
    assert calls == ["slack.shortcut", "trigger-fire"]
    assert {event.state for event in bot.events} == {"completed"}
    assert (await slack.message("to people")).replies == []


@pytest.mark.parametrize(
    ("form", "answered"),
    [
        ({"me": True}, True),
        ({"app": "Voice"}, True),
        ({"workflow": "Weekly report"}, False),
        ({"slackbot": True}, False),
        ({"bot": "Deploys"}, False),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
async def test_a_message_in_an_unusual_form_is_answered_where_a_person_is_behind_it(
    slack: Slack, form: dict[str, Any], answered: bool
) -> None:
    assert len((await slack.mention("hi", **form)).replies) == answered
    if answered:
        assert_replied(await slack.direct_message("hi", **form), "hi")
        broadcast = await slack.mention("all", thread=await slack.mention("hi"), broadcast=True)
        assert_replied(broadcast, "You said: all")


async def test_home_and_an_assistants_thread_open_and_a_function_completes_or_fails(slack: Slack) -> None:
    await slack.open_app()
    assert [block["type"] for block in slack.home()["blocks"]] == ["actions"]
    await slack.click(slack.home(), "open")
    assert_replied(await slack.submit({"name": "Ada"}), "Hello Ada")
    begun = await slack.open_app("messages")
    assert [reply.text for reply in begun.replies] == ["New Assistant Thread", "about nothing"]
    lounge = slack.simulator.workspace.channel("lounge")
    assert lounge is not None
    assert_replied(await slack.look("lounge"), f"about {lounge.id}")
    run = await slack.run("greet", {"user": {"id": "U1", "secret": "x"}})
    outputs = {"user": {"id": "U1", "secret": "x"}}
    assert run.answer == {"state": "completed", "outputs": outputs, "error": None}
    failed = await slack.run("greet", {"error": "no such user"})
    assert (failed.answer["state"], failed.answer["error"]) == ("failed", "no such user")


async def test_late_answers_to_a_command_come_in_direct_messages(bot: Bot, slack: Slack) -> None:
    """Slack takes no answer at a command's address after 30 minutes."""
    sent, other = await slack.command("/slow"), await slack.command("/slow", user="grace")
    assert_replied(sent, "It begins.")
    await bot.advance("2h", schedules=False)
    assert_replied(sent, "It begins.", "It is done.")
    assert_replied(other, "It begins.", "It is done.")
    assert [message.text for message in slack.messages(user="grace")] == ["It is done."]
    assert [message.text for message in slack.messages("general")] == ["It begins."] * 2


async def test_a_person_edits_and_deletes_a_message(bot: Bot, slack: Slack) -> None:
    sent = await slack.message("hello", user="grace")
    edited = await slack.edit(sent, "@surelane hello")
    assert_replied(edited, "You said: hello")
    await slack.delete(sent)
    assert [message.text for message in slack.messages("general")] == [
        "This message was deleted.",
        "You said: hello",
    ]
    assert {event.state for event in bot.events} == {"completed"}


@pytest.mark.parametrize(
    ("action", "value", "told"),
    [
        ("nmuber", None, "nmuber is not there; there are: city, number (value '1')"),
        (None, "3", "a button with the value '3' is not there; there are: city, number (value '1')"),
    ],
)
async def test_a_button_that_is_not_there_is_told_with_those_that_are(
    slack: Slack, action: str | None, value: str | None, told: str
) -> None:
    sent = await slack.mention("pick")
    with pytest.raises(AssertionError) as failed:
        await slack.click(sent.replies[0], action, value=value)
    assert str(failed.value) == told
    with pytest.raises(AssertionError, match="a button is not there; there are: no elements"):
        await slack.click(await slack.mention("hello"))


async def test_click_answers_a_question_and_one_of_5000_letters_loses_its_buttons_too(slack: Slack) -> None:
    sent = await slack.mention("ask sure")
    await slack.click(sent, user="grace")
    assert sent.replies[-1].text == "you said yes"
    sent = await slack.mention("ask " + "x" * 5_000)
    await slack.click(sent)
    question = sent.replies[0]
    assert [block["type"] for block in question.blocks] == ["section", "section", "context"]


async def test_letters_in_a_menu_get_its_options_and_an_older_message_can_be_used(slack: Slack) -> None:
    sent = await slack.mention("pick")
    first, newest = sent.replies
    options = await slack.type("Ham", "city", on=first)
    assert [option["value"] for option in options] == ["hamburg"]
    assert_replied(await slack.click(first, "city", value="hamburg"), "hamburg")
    assert_replied(await slack.click(first, "number"), "1")
    assert_replied(await slack.click(newest, "number"), "2")
    with pytest.raises(AssertionError, match="2 letters"):
        await slack.type("H", "city", on=first)


async def test_failed_check_tells_replies_traceback_and_state(slack: Slack) -> None:
    sent = await slack.mention("fail once")
    with pytest.raises(AssertionError) as failed:
        assert_replied(sent, "found it")
    message = str(failed.value)
    assert "the bot was to reply\n  'found it'\nand it replied\n  nothing\n" in message
    assert re.search(r"slack\.app_mention, after 1 attempt, is retrying: attempt 2 begins at", message)
    assert re.search(r'File ".*handlers\.py", line \d+, in mentioned', message)
    assert "LookupError: no such figure" in message


async def test_a_message_scheduled_in_slack_is_posted_as_time_passes(bot: Bot, slack: Slack) -> None:
    web = AsyncWebClient(token="xoxb-any", base_url=f"{slack.simulator.interactions.public_url}/api/")
    await web.chat_scheduleMessage(channel="support", text="later", post_at=int(time.time()) + 3600)
    support = slack.simulator.workspace.channel("support")
    assert support is not None
    await bot.advance("50m")
    assert not support.messages
    await bot.advance("20m")
    assert [message.text for message in support.messages.values()] == ["later"]


async def test_time_passes_without_waiting(bot: Bot, slack: Slack) -> None:
    nap, retried = await slack.mention("nap 2h"), await slack.mention("fail once")
    await slack.mention("later 90")
    await bot.advance("1m")
    assert_replied(retried, "found it")
    assert nap.replies == []
    await bot.advance("179m")
    assert_replied(nap, "awake")
    general = nap.channel.messages.values()
    assert [message.text for message in general].count("the report") == 3
    assert [message.text for message in general].count("it is later") == 1
    assert_replied(await slack.mention("still there"), "You said: still there")


@pytest.mark.parametrize(
    ("point", "deploys"), [("step deploy", 1), ("in step deploy", 2), ("start", 1), ("end", 1)]
)
async def test_fresh_worker_goes_on_after_a_kill(bot: Bot, slack: Slack, point: str, deploys: int) -> None:
    with bot.killed_at(point):
        sent = await slack.mention("deploy api")
    assert_replied(sent, "api-1 is out")
    assert calls == ["build api", *["deploy api-1"] * deploys]
    (event,) = bot.events
    assert event.state == "completed"


async def test_point_that_is_not_reached_fails_the_test(bot: Bot, slack: Slack) -> None:
    missed = r"not killed at 'step deploi'; .*: start, in step build, step build, "
    with pytest.raises(AssertionError, match=missed), bot.killed_at("step deploi"):
        await slack.mention("deploy api")
    with pytest.raises(ValueError, match="is no point"), bot.killed_at("deploy"):
        pass


async def test_people_write_at_the_same_time_and_a_failure_hook_replies_to_each(slack: Slack) -> None:
    one, other = await asyncio.gather(slack.mention("one"), slack.mention("other", user="grace"))
    assert_replied(one, "You said: one")
    assert_replied(other, "You said: other")
    assert_replied(await slack.mention("give up"), "slack.app_mention failed: no_luck")
    assert_replied(await slack.command("/broken"), "slack.command.broken failed: no_luck")
