"""Each SQL file of the queue opens with a map: what each of its functions and views is for, and who calls it."""

import re
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parents[2] / "migrations/idempotent").glob("*.sql"))
MADE = re.compile(r"^create or replace (?:function|view) agent\.(\w+)", re.MULTILINE)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_file_opens_with_a_map_of_its_functions(file: Path) -> None:
    text = file.read_text()
    opening = text.partition("\n\n")[0]
    assert all(line.startswith("--") for line in opening.splitlines())
    listed = re.findall(r"^--   ([\w, ]+): ", opening, re.MULTILINE)
    names = [name for line in listed for name in line.split(", ")]
    assert names or file.stem == "021-grants", "it makes no function"
    assert sorted(names) == sorted(set(MADE.findall(text)))


def test_the_engines_page_names_functions_that_exist() -> None:
    made = {name for file in FILES for name in MADE.findall(file.read_text())}
    page = (Path(__file__).parents[2] / "docs/engine.md").read_text()
    calls = page.partition("## Who calls what, and when")[2].partition("## The mechanisms")[0]
    rows = [line for line in calls.splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)} - {"replace", "earliest", "busy"}
    assert len(named) > 30
    assert named <= made
