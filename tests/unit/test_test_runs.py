"""Tests skip only for listed reasons, `make test` tries every promise, and two runs share nothing."""

import gc
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import EVERYDAY, TOOLS

from tests import needs
from tests.deploy.commands import ROOT
from tests.needs import engine_answers

SKIPS = """
import pytest
from tests.needs import lacking

def test_listed():
    lacking("no Docker engine answers")

def test_unlisted():
    pytest.skip("later")

@pytest.mark.skip(reason="not now")
def test_marked():
    pass

@pytest.mark.skipif(True, reason="a plain table has no chunks")
def test_condition():
    pass
"""


@pytest.fixture
def asked_anew() -> Iterator[None]:
    """Let the test ask for an engine, and those after it as well."""
    engine_answers.cache_clear()
    yield
    engine_answers.cache_clear()


@pytest.mark.usefixtures("asked_anew")
@pytest.mark.parametrize("command", [None, "", "raise SystemExit(1)", "import time; time.sleep(60)"])
def test_no_engine_is_found_and_no_socket_left(
    command: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether this machine's command ``docker`` is asked, or there is none, or it fails or hangs."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    if command is not None:
        monkeypatch.setenv("PATH", str(tmp_path))
    if command:
        docker = tmp_path / "docker"
        docker.write_text(f"#!{sys.executable}\n{command}\n")
        docker.chmod(0o755)
        monkeypatch.setattr(needs, "PATIENCE", 0.5)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert not engine_answers()
        gc.collect()
    assert [str(warning.message) for warning in warned] == []


@pytest.mark.slow
def test_a_skip_for_a_reason_that_is_not_listed_fails(tmp_path: Path) -> None:
    tests = tmp_path / "test_skips.py"
    tests.write_text(SKIPS)
    command = [sys.executable, "-m", "pytest", "-p", "conftest", f"--config-file={ROOT / 'pyproject.toml'}"]
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    ran = subprocess.run(
        [*command, str(tests)], check=False, cwd=ROOT, env=environment, capture_output=True, text=True
    )
    skipped = re.findall(r"^SKIPPED .*?: (.*)$", ran.stdout, re.MULTILINE)
    failed = re.findall(
        r"^skipped for a reason that is not in tests.needs.REASONS: (.*)$", ran.stdout, re.MULTILINE
    )
    assert skipped == ["no Docker engine answers", "a plain table has no chunks"], ran.stdout
    assert sorted(failed) == ["later", "not now"], ran.stdout
    assert "1 failed, 2 skipped, 1 error in" in ran.stdout


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


def test_the_makefile_and_pytest_agree_and_directories_are_a_runs_own(tmp_path: Path) -> None:
    made = dict(re.findall(r"^(\w+) := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE))
    words = made["EVERYDAY"].replace("$(wildcard ", "").replace(")", "").split()
    places = {found.relative_to(ROOT).as_posix() for word in words for found in ROOT.glob(word)}
    assert places == set(EVERYDAY)
    assert set(made["TOOLS"].split(" or ")) == TOOLS
    assert not any(parent.name.startswith("pytest-of-") for parent in tmp_path.parents)


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
