"""What the documentation points to exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")


def test_the_tests_that_show_what_is_promised_exist() -> None:
    named = set(re.findall(r"`(\w+/test_\w+\.py)`", (ROOT / "docs/reliability.md").read_text()))
    assert len(named) > 10
    assert not [name for name in named if not (ROOT / "tests" / name).is_file()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    links = [
        link
        for link in LINK.findall(page.read_text())
        if "://" not in link and not link.startswith("mailto:")
    ]
    lost = []
    for link in links:
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert not lost


def test_links_and_anchors_are_found_at_all() -> None:
    """Without this, a change of the patterns above would leave nothing to check."""
    links = [link for page in PAGES for link in LINK.findall(page.read_text())]
    assert len(links) > 50
    assert [link for link in links if "#" in link]
    assert "the-words" in anchors(ROOT / "docs/concepts.md")


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings have on GitHub."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
