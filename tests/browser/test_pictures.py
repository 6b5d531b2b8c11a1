"""The documentation's pictures of both pages: `make pictures` makes them anew."""

import os
from typing import Any

import pytest

from tests.browser.slack_page import Browser, Page, expect, open_page
from tests.browser.slack_scenes import VIEWS, converse
from tests.browser.test_console_screens import Desk, desk, shared  # noqa: F401 - they are fixtures
from tests.docs.blocks import ROOT
from tests.system.slack_app import simulated

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif("SURELANE_RECORD" not in os.environ, reason="makes pictures on purpose"),
]

LARGEST = 150_000
"""Bytes of a picture: a reader of the documentation waits for it."""
SIZES = {"": (1280, 720, 1.0), "-phone": (390, 780, 1.5)}
SCREENS = {"overview": "/console/", "event": "/console/events/{failed}"}


async def photograph(page: Page, name: str) -> None:
    """Keep what the page shows."""
    path = ROOT / f"docs/images/{name}.png"
    await page.screenshot(path=path)
    assert path.stat().st_size <= LARGEST, name


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
async def test_the_operators_page(desk: Desk, size: str, scheme: Any) -> None:  # noqa: F811
    width, height, scale = SIZES[size]
    options = {"viewport": {"width": width, "height": height}, "device_scale_factor": scale}
    for name, address in SCREENS.items():
        async with desk.open(
            address.format(**vars(desk.scenes)), color_scheme=scheme, timezone_id="Europe/Berlin", **options
        ) as page:
            await expect(page.locator("#connection")).to_have_attribute("data-state", "live")
            await photograph(page, f"console-{name}{size}-{scheme}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
async def test_the_simulators_page(browser: Browser, size: str, scheme: Any) -> None:
    width, height, scale = SIZES[size]
    async with (
        simulated() as pair,
        open_page(browser, pair.url, width=width, height=height, touch=bool(size), scale=scale) as slack,
    ):
        await slack.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        await converse(pair)
        for step in VIEWS["thread"]:
            await step(slack, pair)
        await photograph(slack.page, f"simulator{size}-{scheme}")
