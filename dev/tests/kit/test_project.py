"""The project that `surelane new` writes has tests that pass."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from surelane_dev.new import write_project
from tests.databases import Server


@pytest.mark.parametrize(("kind", "tests"), [("", 4), ("agent", 4), ("bolt", 3)])
def test_tests_of_a_new_project_pass(server: Server, tmp_path: Path, kind: str, tests: int) -> None:
    write_project(tmp_path / "mybot", kind)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--assert=plain"],
        cwd=tmp_path / "mybot",
        env={**os.environ, "SURELANE_TEST_DATABASE_URL": server.admin},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{tests} passed" in ran.stdout
    assert "warning" not in ran.stdout
