"""A person in Chromium writes to the bot and sees the answers."""

import asyncio

import pytest

from tests.browser.slack_page import SlackPage
from tests.system.slack_app import Answer, Pair

pytestmark = pytest.mark.browser


async def test_a_message_and_a_reply_are_answered_in_the_thread(slack: SlackPage, pair: Pair) -> None:
    await slack.say("hello")
    await slack.expect(slack.thread).to_contain_text("you said: hello")
    await slack.expect(slack.channel).to_contain_text("@Surelane hello")
    await slack.expect(slack.channel.get_by_role("button", name="1 reply")).to_be_visible()
    await slack.expect(slack.channel.locator(".delivery")).to_contain_text("app_mention 200 in")
    await slack.expect(slack.channel.get_by_role("button", name="eyes, 1: Surelane")).to_be_visible()
    assert pair.app.events[0]["event"]["text"] == "<@U0SURELANE> hello"
    await slack.reply_box.fill("and again")
    await slack.reply_box.press("Enter")
    await slack.expect(slack.thread).to_contain_text("you said: and again")
    assert pair.app.events[1]["event"]["thread_ts"] == pair.app.events[0]["event"]["ts"]


async def test_retries_are_shown_with_their_reasons_until_given_up(slack: SlackPage, pair: Pair) -> None:
    pair.app.answers.extend([Answer(503), Answer(500)])
    await slack.say("are you there?")
    delivery = slack.channel.locator(".delivery")
    await slack.expect(delivery).to_contain_text("2 retries")
    await delivery.locator("summary").click()
    await slack.expect(delivery.get_by_role("listitem")).to_have_count(3)
    await slack.expect(delivery).to_contain_text("retry 2 (http_error) → 200")
    await slack.expect(slack.thread).to_contain_text("you said: are you there?")
    pair.app.answers.extend([Answer(503)] * 4)
    await slack.say("anybody?")
    given_up = slack.message("anybody?").locator(".delivery")
    await slack.expect(given_up).to_contain_text("503 error · given up · 3 retries")


async def test_a_fault_is_switched_on_ends_when_it_happened_and_can_be_switched_off(slack: SlackPage) -> None:
    faults = slack.tools.get_by_role("list", name="Faults that are on").get_by_role("listitem")
    await slack.switch_on("429 with Retry-After", "chat.postMessage")
    await slack.say("hello")
    await slack.open_tools("Calls")
    calls = slack.tools.get_by_role("listitem").filter(has_text="chat.postMessage")
    await slack.expect(calls).to_have_count(2)
    await slack.expect(calls.nth(1)).to_contain_text("ratelimited")
    await slack.expect(calls.nth(0)).to_contain_text("ok")
    await slack.open_tools("Faults")
    await slack.expect(faults).to_have_count(0)
    await slack.message("hello").get_by_role("button", name="1 reply").click()
    await slack.expect(slack.thread).to_contain_text("you said: hello")
    await slack.switch_on("the token is refused")
    await slack.tools.get_by_role("button", name="Switch off").click()
    await slack.expect(faults).to_have_count(0)
    await slack.say("once more")
    await slack.message("once more").get_by_role("button", name="1 reply").click()
    await slack.expect(slack.thread).to_contain_text("you said: once more")


async def test_what_the_bot_is_doing_and_a_streamed_answer_are_shown(slack: SlackPage) -> None:
    await slack.say("status")
    await slack.expect(slack.thread).to_contain_text("Surelane is thinking")
    await slack.say("please stream")
    await slack.expect(slack.thread).to_contain_text("it comes in pieces")
    await slack.expect(slack.thread.locator("strong", has_text="pieces")).to_be_visible()
    await slack.expect(slack.thread.get_by_label("still writing")).to_have_count(0)


async def test_without_a_mention_the_bot_hears_direct_messages_alone(slack: SlackPage, pair: Pair) -> None:
    await slack.page.locator("#composer").get_by_role("button", name="Do not mention the bot").click()
    await slack.say("just us")
    await slack.expect(slack.channel).to_contain_text("just us")
    await slack.expect(slack.channel.locator(".mention")).to_have_count(0)
    assert pair.app.events == []
    await slack.open_channel("Surelane")
    await slack.expect(slack.page.locator("#composer").get_by_role("button", name="the bot")).to_have_count(0)
    await slack.say("between us")
    await slack.expect(slack.thread).to_contain_text("you said: between us")
    message, *_ = [each["event"] for each in pair.app.events if each["event"]["type"] == "message"]
    assert message["channel_type"] == "im"


async def test_what_people_write_is_shown_as_text_and_others_react_to_it(slack: SlackPage) -> None:
    await slack.say("quiet <img src=x onerror=alert(1)> & *bold*")
    await slack.expect(slack.channel).to_contain_text("quiet <img src=x onerror=alert(1)> & bold")
    await slack.expect(slack.channel.locator("strong", has_text="bold")).to_be_visible()
    await slack.expect(slack.channel.locator("img")).to_have_count(0)
    message = slack.message("& bold")
    await message.hover()
    await message.get_by_role("button", name="React with +1").click()
    given = message.get_by_role("button", name="+1, 1: Ada Byron")
    await slack.expect(given).to_have_attribute("aria-pressed", "true")
    await given.click()
    await slack.expect(given).to_have_count(0)


async def test_each_person_sees_what_is_theirs(slack: SlackPage, pair: Pair) -> None:
    await pair.web.chat_postEphemeral(channel="C0GENERAL1", user="U0GRACE001", text="for Grace alone")
    await slack.say("quiet, everybody")
    await slack.expect(slack.channel).to_contain_text("quiet, everybody")
    await slack.expect(slack.channel).not_to_contain_text("for Grace alone")
    await slack.page.get_by_label("You are").select_option("Grace Murray")
    await slack.expect(slack.channel).to_contain_text("for Grace alone")


async def test_the_bot_is_brought_into_a_channel(slack: SlackPage) -> None:
    await slack.open_channel("lounge")
    await slack.page.get_by_role("button", name="Add the bot").click()
    await slack.expect(slack.page.get_by_role("button", name="Add the bot")).to_be_hidden()
    await slack.say("welcome")
    await slack.expect(slack.thread).to_contain_text("you said: welcome")


OPENINGS = ("[", "[a](http://x", "<@A|", "<#A|", "<http://x", "<!here|", "**a", "*", "`a`", ":a", ":x:")
RENDER = """async (openings) => {
  const { rich, emoji } = await import("/page/text.js");
  openings.forEach((opening) => rich(opening.repeat(100_000 / opening.length)));
  const [shown] = rich("*a* [x](https://y) :constructor:").filter((node) => node.localName === "a");
  return [shown.href, emoji("constructor")];
}"""


async def test_a_text_of_nothing_but_openings_is_read_once(slack: SlackPage) -> None:
    """It is more than twice the longest message. A new scan from every opening would take minutes."""
    async with asyncio.timeout(120):
        shown = await slack.page.evaluate(RENDER, list(OPENINGS))
    assert shown == ["https://y/", ":constructor:"]
