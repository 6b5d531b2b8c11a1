"""A machine looks at each view of both pages: desktop and phone, light and dark."""

from typing import Any

import pytest

from surelane_service.service_settings import DEMO_CLIENT_ID
from tests.browser.looks import ugly
from tests.browser.slack_page import Browser, expect, go, open_page
from tests.browser.slack_scenes import VIEWS, converse
from tests.browser.test_console_screens import SCREENS, Desk, desk, shared  # noqa: F401 - they are fixtures
from tests.browser.test_workspaces import installed
from tests.system.slack_app import simulated

pytestmark = pytest.mark.browser

SIZES = {"desktop": (1280, 800), "phone": (390, 780)}
LINK = (
    f"oauth/v2/authorize?client_id={DEMO_CLIENT_ID}&scope=app_mentions:read,chat:write&user_scope=search:read"
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_each_screen_of_the_operators_page_looks_right(desk: Desk, scheme: Any) -> None:  # noqa: F811
    found: dict[str, list[str]] = {}
    async with desk.open(color_scheme=scheme, reduced_motion="reduce", timezone_id="Asia/Kolkata") as page:
        for name, address in SCREENS.items():
            response = await page.goto(desk.url + address.format(**vars(desk.scenes), joining=desk.joining))
            assert response is not None
            assert response.status == (404 if name == "missing" else 200), name
            await expect(page.locator("#connection")).not_to_have_attribute("data-state", "connecting")
            for size, (width, height) in {**SIZES, "wide": (2560, 800)}.items():
                await page.set_viewport_size({"width": width, "height": height})
                axe = size == "desktop" or (size, scheme) == ("phone", "light")
                found[f"{name}, {size}"] = await ugly(page, axe=axe)
    assert "\n".join(f"{view}: {each}" for view, problems in found.items() for each in problems) == ""


@pytest.mark.parametrize(
    ("size", "scheme", "workspaces"),
    [("desktop", "light", 1), ("desktop", "dark", 2), ("phone", "light", 2), ("phone", "dark", 1)],
)
async def test_each_view_of_the_simulators_page_looks_right(
    browser: Browser, size: str, scheme: Any, workspaces: int
) -> None:
    found: dict[str, list[str]] = {}
    width, height = SIZES[size]
    async with simulated() as pair:
        if workspaces > 1:
            await installed(pair, "T0BAKERY01")
        await converse(pair)
        async with open_page(browser, pair.url, width=width, height=height, touch=size == "phone") as slack:
            await slack.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            for name, steps in VIEWS.items():
                for step in steps:
                    await step(slack, pair)
                found[name] = await ugly(slack.page)
            await go(slack.page, f"{pair.url}/{LINK}")
            found["install"] = await ugly(slack.page)
    assert "\n".join(f"{view}: {each}" for view, problems in found.items() for each in problems) == ""
