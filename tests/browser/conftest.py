"""Give each session a browser, and each test a simulator with a bot and its open page."""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from tests.browser.bot import answering
from tests.needs import lacking, program
from tests.system.slack_app import Pair, simulated

if TYPE_CHECKING:  # installed for these tests only; others are collected together with them
    from playwright.async_api import Browser

    from tests.browser.slack_page import SlackPage

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator["Browser"]:
    """Start Chromium without a window."""
    try:
        from playwright.async_api import async_playwright  # noqa: PLC0415
    except ImportError:
        lacking("playwright is not installed: make .venv/browser.stamp")
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(
            executable_path=program("chromium", "chromium-browser", "google-chrome"), args=FLAGS
        )
        yield chromium
        await chromium.close()


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """Run a simulated Slack, and a bot that answers in the thread."""
    async with simulated() as running:
        bot = asyncio.create_task(answering(running))
        yield running
        bot.cancel()


@pytest.fixture
async def slack(browser: "Browser", pair: Pair) -> AsyncIterator["SlackPage"]:
    """Open the page on a desktop screen."""
    from tests.browser.slack_page import open_page  # noqa: PLC0415

    async with open_page(browser, pair.url, width=1280, height=800) as page:
        yield page


@pytest.fixture
async def phone(browser: "Browser", pair: Pair) -> AsyncIterator["SlackPage"]:
    """Open the page on a phone's screen."""
    from tests.browser.slack_page import open_page  # noqa: PLC0415

    async with open_page(browser, pair.url, width=390, height=780, touch=True) as page:
        yield page
