"""The project that `surelane new` writes has tests that pass."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from surelane_dev.new import write_project
from tests.databases import Server


@pytest.mark.parametrize("agent", [False, True])
def test_tests_of_a_new_project_pass(server: Server, tmp_path: Path, *, agent: bool) -> None:
    write_project(tmp_path / "mybot", agent=agent)
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
    assert "4 passed" in ran.stdout
    assert "warning" not in ran.stdout
