"""Give each session a browser, and each test a simulator with a bot and its open page."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.browser.bot import answering
from tests.browser.slack_page import Browser, SlackPage, open_page
from tests.needs import lacking, program
from tests.system.slack_app import Pair, simulated

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run"),
)


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
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
async def slack(browser: Browser, pair: Pair) -> AsyncIterator[SlackPage]:
    """Open the page on a desktop screen."""
    async with open_page(browser, pair.url, width=1280, height=800) as page:
        yield page


@pytest.fixture
async def phone(browser: Browser, pair: Pair) -> AsyncIterator[SlackPage]:
    """Open the page on a phone's screen."""
    async with open_page(browser, pair.url, width=390, height=780, touch=True) as page:
        yield page
