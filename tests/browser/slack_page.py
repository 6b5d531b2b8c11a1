"""Use the simulator's page as a person does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # installed for these tests only; others are collected together with them
    from playwright.async_api import Browser, Locator, Page
else:
    Browser = Locator = Page = Any

__all__ = ["PATIENCE", "Browser", "Locator", "Page", "SlackPage", "expect", "go", "open_page"]

PATIENCE = 60_000
"""Milliseconds. Generous, because a browser, a database and services may share two cores."""

NETWORK_CHANGED = "ERR_NETWORK_CHANGED"


def expect(locator: Locator) -> Any:
    """Make an assertion about a part of a page, which waits until it holds."""
    from playwright import async_api  # noqa: PLC0415

    async_api.expect.set_options(timeout=PATIENCE)
    return async_api.expect(locator)


class SlackPage:
    """The page's actions and contents. Every method waits until its element is there."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.expect = expect
        self.channel = page.get_by_role("log", name="Messages", exact=True)
        self.thread = page.get_by_role("log", name="Messages of the thread")
        self.composer = page.get_by_role("textbox", name="Message", exact=True)
        self.reply_box = page.get_by_role("textbox", name="Reply")
        self.tools = page.get_by_role("complementary", name="Faults and activity")
        self.rail = page.get_by_role("navigation", name="Workspaces")
        self.modal = page.get_by_role("dialog")

    async def say(self, text: str) -> None:
        """Type a message and send it with Enter."""
        await self.composer.fill(text)
        await self.composer.press("Enter")

    async def open_channel(self, name: str) -> None:
        """Open a channel, or the direct messages by the bot's name."""
        await self.page.get_by_role("navigation").get_by_role("button", name=name).click()

    async def open_workspace(self, name: str) -> None:
        """Choose a workspace in the rail, and wait until the page shows it."""
        link = self.rail.get_by_role("link", name=name)
        await link.click()
        await expect(link).to_have_attribute("aria-current", "page")

    async def use_shortcut(self, name: str) -> None:
        """Use a global shortcut of the app."""
        await self.page.locator("#composer").get_by_role("button", name="Shortcuts").click()
        await self.page.get_by_role("menuitem", name=name).click()

    async def open_tools(self, tab: str = "Faults") -> None:
        """Open the tools' pane at the faults or another tab."""
        toggle = self.page.locator("#tools-toggle")
        if await toggle.get_attribute("aria-expanded") == "false":
            await toggle.click()
        await self.page.get_by_role("tab", name=tab).click()

    async def switch_on(self, fault: str, method: str | None = None) -> None:
        """Switch on a fault that happens once."""
        await self.open_tools()
        await self.page.get_by_label("What goes wrong").select_option(label=fault)
        if method:
            await self.page.get_by_role("combobox", name="Method").select_option(method)
        await self.page.get_by_role("button", name="Switch on").click()
        await expect(self.tools.get_by_role("list", name="Faults that are on")).to_contain_text(fault)

    def message(self, text: str) -> Locator:
        """Return the channel's message with this text."""
        return self.channel.get_by_role("listitem").filter(has_text=text)

    async def scrolls_sideways(self) -> bool:
        """Return whether the page is wider than the screen."""
        script = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        return bool(await self.page.evaluate(script))


@asynccontextmanager
async def open_page(
    browser: Browser, url: str, *, width: int, height: int, touch: bool = False, scale: float = 1
) -> AsyncIterator[SlackPage]:
    """Open the page and wait until it is live. Check at the end that no script failed."""
    problems: list[str] = []
    context = await browser.new_context(
        viewport={"width": width, "height": height},
        has_touch=touch,
        is_mobile=touch,
        device_scale_factor=scale,
    )
    context.set_default_timeout(PATIENCE)
    page = await context.new_page()
    page.on("pageerror", lambda error: problems.append(str(error)))
    await go(page, url)
    await expect(page.get_by_role("status").first).to_have_attribute("data-state", "live")
    yield SlackPage(page)
    await context.close()
    assert problems == []


async def go(page: Page, url: str | None = None) -> None:
    """Load a page, or the same one again. Repeat that if Chromium dropped a request.

    It drops requests when the machine gets or loses a network. Starting and ending containers cause that, even for
    requests to this machine.
    """
    from playwright.async_api import Error  # noqa: PLC0415

    dropped: list[str] = []

    def note(failure: str | None) -> None:
        if failure and NETWORK_CHANGED in failure:
            dropped.append(failure)

    page.on("requestfailed", lambda request: note(request.failure))
    for _ in range(10):
        dropped.clear()
        try:
            await (page.reload() if url is None else page.goto(url))
        except Error as error:
            note(str(error))
            if not dropped:
                raise
        if not dropped:
            return
