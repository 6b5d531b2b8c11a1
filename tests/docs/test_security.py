"""The page of security names tests, settings and files that exist, for each chapter of the standard."""

import re

from tests.deploy.settings import READ
from tests.docs.blocks import ROOT

PAGE = (ROOT / "docs/security.md").read_text().partition("## OWASP ASVS")[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| V")
]


def test_each_chapter_has_a_row_that_says_how_it_is_met_by_which_tests_and_what_is_left() -> None:
    assert [row[0].split()[0] for row in ROWS] == [f"V{number}" for number in range(1, 18)]
    for chapter, state, met, tests, left in ROWS:
        assert state in ("met", "partly", "n/a"), chapter
        assert met, chapter
        assert bool(tests) is (state != "n/a"), chapter
        assert left or state != "partly", f"{chapter}: what is left?"


def test_named_tests_settings_and_files_exist() -> None:
    named = re.findall(r"`(\S+?)::(test_\w+)`", PAGE)
    assert len(named) >= 30
    for file, test in named:
        assert re.search(rf"^(async )?def {test}\(", (ROOT / file).read_text(), re.MULTILINE), (
            f"{file}::{test}"
        )
    settings = set(re.findall(r"`(SURELANE_\w+)", PAGE))
    assert settings
    assert settings <= set().union(*READ.values())
