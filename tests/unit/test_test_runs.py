"""`make test` tries every promise. Each test run on a machine has its own ports and directories."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import EVERYDAY, TOOLS

from tests.deploy.commands import ROOT

TAKE = "from tests.processes import free_port; print(*(free_port() for _ in range(300))); input()"

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


def test_the_makefile_and_pytest_agree_on_the_everyday_suite() -> None:
    made = dict(re.findall(r"^(\w+) := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(made["EVERYDAY"].split()) == set(EVERYDAY)
    assert set(made["TOOLS"].split(" or ")) == TOOLS


@pytest.mark.slow
def test_processes_are_given_different_ports_while_they_run() -> None:
    command = [sys.executable, "-c", TAKE]
    running = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        given = [set(process.stdout.readline().split()) for process in running if process.stdout]
    finally:
        for process in running:
            process.communicate("\n", timeout=60)
    assert all(len(ports) > 100 for ports in given)
    assert len(set.union(*given)) == sum(map(len, given))


def test_another_run_of_pytest_closes_no_directory_of_this_one(tmp_path: Path) -> None:
    assert not any(parent.name.startswith("pytest-of-") for parent in tmp_path.parents)
