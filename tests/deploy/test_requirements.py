"""An image installs one requirements file: what its program imports must be in it, not only on developers' machines."""

import ast
import importlib.metadata
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.commands import ROOT

OURS = {"surelane", "surelane_ingest", "surelane_worker", "surelane_migrations"}


def imported(file: Path) -> Iterator[str]:
    """The modules of others that a file imports, by their first name."""
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (name.name.partition(".")[0] for name in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]


def canonical(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


@pytest.mark.parametrize(
    ("sources", "requirements"),
    [
        ("shared/src", "runtime"),
        ("services/ingest/src", "runtime"),
        ("services/worker/src", "runtime"),
        ("migrations/src", "migrations"),
    ],
)
def test_a_program_imports_nothing_that_its_image_does_not_install(sources: str, requirements: str) -> None:
    pinned = re.findall(
        r"^([\w.-]+)==", (ROOT / f"requirements/{requirements}.txt").read_text(), re.MULTILINE
    )
    installed = set(map(canonical, pinned))
    provided_by = importlib.metadata.packages_distributions()
    for file in (ROOT / sources).rglob("*.py"):
        for module in set(imported(file)) - OURS - set(sys.stdlib_module_names):
            providers = set(map(canonical, provided_by[module]))
            assert providers & installed, f"{file.relative_to(ROOT)} imports {module}"
