"""With installs on, the whole system answers in each workspace with that workspace's token."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dev.tests.system.up import Up, up
from surelane.encryption.keys import new_key
from surelane_service.service_settings import DEMO_CLIENT_ID, DEMO_CLIENT_SECRET

if TYPE_CHECKING:
    from playwright.async_api import Browser

    from tests.browser.slack_page import SlackPage

pytestmark = pytest.mark.browser


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[Up]:
    """Run `surelane dev` with installs."""
    settings = {
        "SLACK_CLIENT_ID": DEMO_CLIENT_ID,
        "SLACK_CLIENT_SECRET": DEMO_CLIENT_SECRET,
        "SURELANE_ENCRYPTION_KEYS": new_key(),
        "SURELANE_POLL_INTERVAL": "0.2s",
    }
    async with up(tmp_path / "pg", settings) as running:
        await running.ready()
        yield running
        await running.end()


async def install(slack: "SlackPage", workspace: str) -> None:
    """Follow the page's link to Slack's page for installs, allow it, and come back."""
    from tests.browser.slack_page import go  # noqa: PLC0415

    link = slack.page.get_by_role("note").get_by_role("link", name="Install the app")
    consent = await slack.page.context.new_page()
    await go(consent, await link.get_attribute("href"))
    await consent.get_by_role("button", name="Allow").click()
    back = consent.get_by_role("link", name="open it in the browser")
    await go(consent, await back.get_attribute("href"))
    rail = consent.get_by_role("navigation", name="Workspaces")
    await slack.expect(rail.get_by_role("link", name=workspace)).to_have_attribute("aria-current", "page")
    await consent.close()
    await slack.expect(slack.page.locator("#not-installed")).to_be_hidden()


async def test_two_workspaces_install_the_app_and_each_gets_its_answers(
    browser: "Browser", system: Up
) -> None:
    from tests.browser.slack_page import open_page  # noqa: PLC0415

    async with open_page(browser, system.page, width=1280, height=800) as slack:
        for workspace, channel in (("Surelane", "support"), ("Bakery", "orders")):  # orders is shared
            await slack.open_workspace(workspace)
            if workspace != "Surelane":  # which installs the app by itself
                await install(slack, workspace)
            await slack.open_channel(channel)
            await slack.say(f"hello from {workspace}")
            await slack.expect(slack.thread.locator(".message.app")).to_contain_text(
                f"hello from {workspace}"
            )
            delivery = slack.message(f"hello from {workspace}").locator(".delivery")
            await slack.expect(delivery).to_contain_text("queue: done")
        await slack.open_tools("Calls")
        calls = slack.tools.get_by_role("listitem").filter(has_text="chat.postMessage")
        await slack.expect(calls).to_have_count(2)
        await slack.expect(calls.filter(has_text="Surelane")).to_contain_text("ok")
        await slack.expect(calls.filter(has_text="Bakery")).to_contain_text("ok")
