"""Tests skip only for listed reasons, `make test` tries every promise, and two runs share nothing."""

import re
from pathlib import Path

from conftest import EVERYDAY, TOOLS

from tests.deploy.commands import ROOT

ROW = re.compile(r"^\| ([a-z -]+) \| (?!bound|promise).*$", re.MULTILINE)


def test_each_row_of_the_promises_is_tried_by_make_test_on_real_processes() -> None:
    page = (ROOT / "docs/reliability.md").read_text()
    table = page[page.index("| name | promise |") : page.index("## When a worker dies")]
    promised = {row[1]: row[0] for row in ROW.finditer(table)}
    assert len(promised) > 25
    tried = {
        (name, f"`promises/{file.name}`")
        for file in (ROOT / "tests/promises").glob("test_*.py")
        for name in re.findall(r'^@pytest\.mark\.promise\("([^"]+)"\)$', file.read_text(), re.MULTILINE)
    }
    assert {name for name, _ in tried} == promised.keys()
    assert not [(name, file) for name, file in tried if file not in promised[name]], (
        "the row does not name it"
    )
    others = "|".join({"slow", "skip", "skipif", "xfail"} | TOOLS)
    texts = [file.read_text() for file in (ROOT / "tests/promises").glob("*.py")]
    assert not re.search(rf"mark\.({others})\b", "".join(texts)), "it is not part of make test"


def test_the_makefile_and_pytest_agree_and_directories_are_a_runs_own(tmp_path: Path) -> None:
    made = dict(re.findall(r"^(\w+) := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE))
    words = made["EVERYDAY"].replace("$(wildcard ", "").replace(")", "").split()
    places = {found.relative_to(ROOT).as_posix() for word in words for found in ROOT.glob(word)}
    assert places == set(EVERYDAY)
    assert set(made["TOOLS"].split(" or ")) == TOOLS
    assert not any(parent.name.startswith("pytest-of-") for parent in tmp_path.parents)
