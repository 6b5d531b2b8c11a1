"""The reference says what the code has, and the list of pages for assistants what the index has."""

import os
from pathlib import Path

import pytest

from tests.docs.reference import DOCS, PAGES, contents, page

RECORD = "SURELANE_RECORD=1 python -m pytest tests/docs/test_reference.py"


def check(file: Path, made: str) -> None:
    if os.environ.get("SURELANE_RECORD"):
        file.write_text(made, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == made, f"{file.name} is behind: {RECORD}"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_the_reference_says_what_the_code_has(name: str) -> None:
    file = DOCS / "reference" / f"{name}.md"
    check(file, page(file, name))


def test_assistants_find_the_pages_of_the_index() -> None:
    check(DOCS / "llms.txt", contents())
