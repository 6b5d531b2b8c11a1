"""The page works with the whole system of `make up`: database, ingest and worker are real."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dev.tests.system.up import Up, up
from tests.browser.slack_page import Browser, SlackPage, open_page

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Up]:
    """Run `make up` with short pauses between attempts."""
    data: Path = tmp_path_factory.mktemp("up")
    settings = {
        "SURELANE_BACKOFF_BASE": "0.2s",
        "SURELANE_POLL_INTERVAL": "0.2s",
        "SURELANE_HANDLERS": "surelane_worker.builtin:handlers",
    }
    async with up(data / "pg", settings) as running:
        await running.ready()
        yield running
        await running.end()


@pytest.fixture
async def slack(browser: Browser, system: Up) -> AsyncIterator[SlackPage]:
    """Open its page."""
    async with open_page(browser, system.page, width=1280, height=800) as page:
        yield page


async def test_a_message_is_answered_and_the_queue_says_done(slack: SlackPage) -> None:
    await slack.say("is anybody there?")
    await slack.expect(slack.channel.locator(".delivery").last).to_contain_text("app_mention 200 in")
    await slack.expect(slack.channel.locator(".delivery").last).to_contain_text("queue: done")
    await slack.expect(slack.thread.locator(".message.app")).to_have_count(1)


async def test_a_refused_token_ends_the_event_and_the_page_says_why(slack: SlackPage) -> None:
    await slack.switch_on("the token is refused", "chat.postMessage")
    await slack.say("no luck")
    delivery = slack.message("no luck").locator(".delivery")
    await slack.expect(delivery).to_contain_text("queue: failed")
    await delivery.locator("summary").click()
    await slack.expect(delivery).to_contain_text("invalid_auth")
