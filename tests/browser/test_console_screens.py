"""The operator's page in a browser."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import asyncpg
import pytest

from surelane import Queue
from surelane.calls import Pool
from tests.browser.console_page import console_at, opened

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
async def pool(shared_database: str) -> AsyncIterator[Pool]:
    async with asyncpg.create_pool(shared_database, min_size=1, max_size=2) as connected:
        yield connected


@pytest.fixture(scope="module")
async def url(pool: Pool) -> AsyncIterator[str]:
    async with console_at(pool) as served:
        yield served


async def test_the_overview_is_live(browser: "Browser", pool: Pool, url: str) -> None:
    from playwright.async_api import expect  # noqa: PLC0415

    await Queue(pool).enqueue("first-kind")
    async with opened(browser, f"{url}/console/") as page:
        await expect(page.locator("#connection")).to_have_text("live")
        await expect(page.get_by_role("link", name="first-kind").first).to_be_visible()
        await Queue(pool).enqueue("second-kind")
        await expect(page.get_by_role("link", name="second-kind").first).to_be_visible()
