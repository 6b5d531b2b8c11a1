"""What a person would see is wrong with a page: cut off, sticking out, covered, uneven, pale."""

from tests.browser.console_page import accessible
from tests.browser.slack_page import Page

LOOK = r"""() => {
  const found = new Set();
  const say = (what, element) => found.add(`${what}: ${element.outerHTML.slice(0, 140)}`);
  const clipped = (each) => each && (getComputedStyle(each).clipPath !== "none" || clipped(each.parentElement));
  const hidden = (element) =>
    !element.checkVisibility({ visibilityProperty: true, opacityProperty: true }) ||
    element.closest("svg, .unseen, .skip") || clipped(element);
  const laid = (each) => each && (getComputedStyle(each).position === "fixed" || laid(each.parentElement));
  const pen = document.createElement("canvas").getContext("2d");
  const top = document.querySelector("dialog[open]") ?? document.documentElement;
  for (const element of [top, ...top.querySelectorAll("*")]) {
    if (hidden(element)) continue;
    const style = getComputedStyle(element);
    const box = element.getBoundingClientRect();
    // Code, and tables that are no cards, scroll sideways on purpose.
    const scrolls = element.matches("pre, .scrolled, .table:not(.cards), input, textarea, select");
    const short = style.textOverflow === "ellipsis";
    if (element.scrollWidth > element.clientWidth + 1 && element.clientWidth && !scrolls && !short)
      say(style.overflowX === "visible" ? "sticks out" : "is cut off", element);
    if (element.placeholder && !element.value && !short) {
      pen.font = style.font;
      const room = element.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
      if (pen.measureText(element.placeholder).width > room + 1) say("has too long a placeholder", element);
    }
    if (element.matches(".legend, .axis") && box.height > 2 * parseFloat(style.fontSize)) say("wraps", element);
    if (!element.matches("button, a, input:not([type=hidden]), select, textarea")) continue;
    if (/\p{Emoji_Presentation}/u.test(element.textContent)) say("needs a font of emoji", element);
    const named = element.textContent.trim() || element.getAttribute("aria-label") || element.labels?.length;
    if (!named) say("has no name", element);
    if (box.top < 0 || box.bottom > innerHeight) continue;
    const [part] = element.getClientRects();
    const over = document.elementFromPoint(part.left + part.width / 2, part.top + part.height / 2);
    if (!over) say("is off the screen", element);
    else if (!element.contains(over) && !over.contains(element) && !laid(over))
      say(`is covered by ${over.outerHTML.slice(0, 60)}`, element);
  }
  for (const row of top.querySelectorAll(".figures, .charts")) {
    const lines = Map.groupBy([...row.children], (card) => Math.round(card.getBoundingClientRect().top));
    const heights = (cards) => new Set(cards.map((card) => Math.round(card.getBoundingClientRect().height)));
    if ([...lines.values()].some((cards) => heights(cards).size > 1)) say("is uneven", row);
  }
  return [...found];
}"""
"""Look at what is visible, in an open dialog alone if there is one."""


async def ugly(page: Page, *, axe: bool = True) -> list[str]:
    """Return what is wrong with how a page looks. axe measures the contrast of texts (at least 4.5), too."""
    found: list[str] = await page.evaluate(LOOK)
    return found + (await accessible(page) if axe else [])
