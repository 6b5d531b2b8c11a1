"""The project of docs/tutorial.md is written as the page says, and its tests pass."""

import os
import subprocess
import sys
from pathlib import Path

from surelane_dev.new import write_project
from tests.databases import Server
from tests.docs.blocks import blocks


def write(project: Path) -> None:
    """Do what the page says to a new project."""
    for block in blocks("python", "yaml", page="docs/tutorial.md"):
        name, _, added = block.role.partition(" ")
        file = project / name
        if name == "manifest.yaml":
            marked = "  slash_commands:\n"
            text = file.read_text()
            assert marked in text
            lines = "".join(f"    {line}\n" for line in block.code.splitlines())
            file.write_text(text.replace(marked, marked + lines))
        else:
            file.write_text(f"{file.read_text()}\n\n{block.code}" if added else block.code)


def test_project_of_the_tutorial_passes_its_tests(server: Server, tmp_path: Path) -> None:
    write_project(tmp_path / "deploybot")
    write(tmp_path / "deploybot")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--assert=plain"],
        cwd=tmp_path / "deploybot",
        env={**os.environ, "SURELANE_TEST_DATABASE_URL": server.admin},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "4 passed" in ran.stdout
