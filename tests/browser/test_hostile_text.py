"""The page reads texts made to keep it busy in time proportional to their length."""

import asyncio

import pytest

from tests.browser.slack_page import SlackPage

pytestmark = pytest.mark.browser

OPENINGS = ("[", "[a](http://x", "<@A|", "<#A|", "<http://x", "<!here|", "**a", "*", "`a`", ":a", ":x:")
RENDER = """async (openings) => {
  const { rich, emoji } = await import("/page/text.js");
  openings.forEach((opening) => rich(opening.repeat(100_000 / opening.length)));
  const [shown] = rich("*a* [x](https://y) :constructor:").filter((node) => node.localName === "a");
  return [shown.href, emoji("constructor")];
}"""


async def test_a_text_of_nothing_but_openings_is_read_once(slack: SlackPage) -> None:
    """It is more than twice the longest message. A new scan from every opening would take minutes."""
    async with asyncio.timeout(120):
        shown = await slack.page.evaluate(RENDER, list(OPENINGS))
    assert shown == ["https://y/", ":constructor:"]
