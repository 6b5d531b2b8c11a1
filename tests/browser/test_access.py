"""The page on a phone, by keyboard, and when the simulator goes away."""

from contextlib import AsyncExitStack

import pytest

from tests.browser.slack_page import Browser, SlackPage, open_page
from tests.processes import free_port
from tests.system.slack_app import simulated

pytestmark = pytest.mark.browser


async def test_a_phone_shows_one_thing_at_a_time_and_nothing_is_cut_off(phone: SlackPage) -> None:
    await phone.say("hello from the road, with a line that is longer than the screen of a phone is wide")
    reply = phone.channel.get_by_role("button", name="1 reply")
    await phone.expect(reply).to_be_visible()
    await phone.expect(phone.thread).to_be_hidden()
    assert not await phone.scrolls_sideways()
    await reply.tap()
    await phone.expect(phone.thread).to_contain_text("you said: hello from the road")
    await phone.expect(phone.reply_box).to_be_in_viewport()
    assert not await phone.scrolls_sideways()
    await phone.page.get_by_role("button", name="Close the thread").tap()
    await phone.expect(phone.composer).to_be_in_viewport()
    support = phone.page.get_by_role("button", name="support")
    await phone.expect(support).to_be_hidden()
    await phone.page.get_by_role("button", name="Channels").tap()
    await support.tap()
    await phone.expect(phone.page.get_by_role("heading", level=1)).to_have_text("# support")
    await phone.expect(support).to_be_hidden()
    await phone.switch_on("500")
    assert not await phone.scrolls_sideways()


async def test_everything_is_done_by_keyboard(slack: SlackPage) -> None:
    keyboard = slack.page.keyboard
    await slack.page.locator("body").focus()
    await slack.page.get_by_role("link", name="Skip to the message box").focus()
    await keyboard.press("Enter")
    await slack.expect(slack.composer).to_be_focused()
    await keyboard.type("first line")
    await keyboard.press("Shift+Enter")
    await keyboard.type("second line")
    await keyboard.press("Enter")
    await slack.expect(slack.thread).to_contain_text("you said: first line")
    await slack.expect(slack.composer).to_be_focused()
    await keyboard.press("Escape")
    await slack.expect(slack.thread).to_be_hidden()
    await slack.channel.get_by_role("button", name="1 reply").press("Enter")
    await slack.expect(slack.reply_box).to_be_focused()


async def test_the_page_says_when_the_simulator_is_gone_and_comes_back_with_it(browser: Browser) -> None:
    port = free_port()
    async with AsyncExitStack() as stack:
        async with simulated(port=port) as before:
            page = open_page(browser, before.url, width=1280, height=800)
            slack = await stack.enter_async_context(page)
            await slack.say("quiet before the storm")
            await slack.expect(slack.channel).to_contain_text("quiet before the storm")
        await slack.expect(slack.page.locator("#connection")).to_have_text("the simulator does not answer")
        async with simulated(port=port):
            await slack.expect(slack.page.locator("#connection")).to_have_text("live")
            await slack.expect(slack.channel).not_to_contain_text("quiet before the storm")
