"""What the documentation points to exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def test_the_tests_that_show_what_is_promised_exist() -> None:
    named = set(re.findall(r"`(\w+/test_\w+\.py)`", (ROOT / "docs/reliability.md").read_text()))
    assert len(named) > 10
    assert not [name for name in named if not (ROOT / "tests" / name).is_file()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    local = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    assert not [link for link in local if not (page.parent / link).exists()]
