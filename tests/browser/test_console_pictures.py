"""The pictures of ``docs/console.md`` are made by this test: run it with ``SURELANE_RECORD=1``."""

import os
from pathlib import Path

import asyncpg
import pytest

from tests.browser.console_page import console_at, opened
from tests.browser.console_scenes import Stage, seed
from tests.browser.slack_page import Browser, expect

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif("SURELANE_RECORD" not in os.environ, reason="makes pictures on purpose"),
]
IMAGES = Path(__file__).parents[2] / "docs" / "images"
PICTURES = {
    "console-overview": ("/console/", 1180, 860, "light"),
    "console-event": ("/console/events/{failed}", 1180, 860, "dark"),
    "console-phone": ("/console/events/{behind}", 390, 780, "light"),
}


async def test_pictures(browser: Browser, shared_database: str) -> None:
    async with asyncpg.create_pool(shared_database, min_size=1, max_size=2) as pool, console_at(pool) as url:
        scenes = await seed(Stage(pool))
        await pool.execute("update agent.measurement set due = '-infinity'")
        for name, (address, width, height, scheme) in PICTURES.items():
            options = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
            async with opened(browser, url + address.format(**vars(scenes)), **options) as page:
                await expect(page.locator("#connection")).to_have_attribute("data-state", "live")
                await page.screenshot(path=IMAGES / f"{name}.png")
