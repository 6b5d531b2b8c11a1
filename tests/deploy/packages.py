"""Build the packages, and install them as a team does."""

import os
import sys
from pathlib import Path

from tests.deploy.commands import ROOT, run

SOURCES = {
    "surelane": "shared/client",
    "surelane_dev": "dev",
    "surelane_ingest": "services/ingest",
    "surelane_migrations": "migrations",
    "surelane_operator": "services/operator",
    "surelane_service": "shared/service",
    "surelane_worker": "services/worker",
    **{f"surelane_{found.name}": f"extensions/{found.name}" for found in (ROOT / "extensions").iterdir()},
}
# Python compiles what is imported. To compile every module is half of what an installation costs.
INDEXES = {
    **{name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_"))},
    "PIP_COMPILE": "0",
}


def build(directory: Path) -> dict[str, Path]:
    """Build the wheels and the source archives as `make packages` does; return the wheels by name."""
    for source in SOURCES.values():
        run(sys.executable, "-m", "hatchling", "build", "--directory", directory, where=ROOT / source)
    return wheels_in(directory)


def wheels_in(directory: Path) -> dict[str, Path]:
    return {file.name.partition("-")[0]: file for file in sorted(directory.glob("*.whl"))}


def environment(at: Path, python: str = sys.executable) -> tuple[Path, tuple[Path | str, ...]]:
    """Make a virtual environment. Return the directory of its programs, and its pip."""
    run(python, "-m", "venv", at / "venv", within=120)
    programs = at / "venv/bin"
    return programs, (programs / "python", "-m", "pip", "--disable-pip-version-check")


def assert_its_tests_pass(python: Path, project: Path) -> None:
    """Run a project's tests."""
    done = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", where=project, within=400)
    assert " passed" in done.stdout
