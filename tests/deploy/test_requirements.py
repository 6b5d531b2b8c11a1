"""The programs' imports are declared in the requirements file of their image and in their package's metadata."""

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from dev.release import IMAGES
from tests.deploy.commands import ROOT, version

PACKAGES = (
    *("shared/client", "shared/service", "services/ingest", "services/worker", "services/operator"),
    *("migrations", "dev"),
    *(f"extensions/{found.name}" for found in (ROOT / "extensions").iterdir()),
)
LOCKS = {
    "migrations": "migrations",
    "extensions/agents": "model",
    "extensions/bolt": "test",
    "extensions/encryption": "operator",
    "dev": "up",
    "services/operator": "operator",
}
"""The requirements files of what runs on others than runtime's."""
DRIVERS = ("django", "psycopg", "sqlalchemy")
"""The extras of the client for the libraries that extensions/drivers takes."""
OURS = {"surelane", *(f"surelane_{package.rpartition('/')[2]}" for package in PACKAGES)}
LATER = {"compression"}
"""What Python's library has from 3.14 on."""
NOT_INSTALLED = OURS | LATER | sys.stdlib_module_names
INSIDE = re.compile(r"^[ \t]+(import|from) ", re.MULTILINE)
"""Imports in functions and blocks. Only for these is a whole module looked through."""


@cache
def providers() -> dict[str, str]:
    """Map each installed module to its distribution, by its whole name, because distributions share namespaces."""
    return {
        re.sub(r"(/__init__)?\.(py|[\w-]+\.so)$", "", str(file)).replace("/", "."): name
        for distribution in importlib.metadata.distributions()
        for name in [distribution.name]  # each access parses the metadata
        for file in distribution.files or ()
        if file.suffix in {".py", ".so"}
    }


def imported(file: Path) -> Iterator[str]:
    """Return the distributions that a file imports. A module that is not installed stands for itself."""
    text = file.read_text()
    nodes = ast.walk(ast.parse(text)) if INSIDE.search(text) else ast.parse(text).body
    for node in nodes:
        match node:
            case ast.Import(names=names):
                wanted = [[name.name] for name in names]
            case ast.ImportFrom(module=str(module), names=names, level=0):
                wanted = [[f"{module}.{name.name}", module] for name in names]
            case _:
                continue
        for modules in wanted:
            if modules[-1].partition(".")[0] not in NOT_INSTALLED:
                found = (providers()[module] for module in modules if module in providers())
                yield canonical(next(found, modules[-1]))


def canonical(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def pinned(requirements: str) -> dict[str, str]:
    """Return the versions in a requirements file."""
    text = (ROOT / f"requirements/{requirements}.txt").read_text()
    return {canonical(name): pin for name, pin in re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)}


def declared(package: str, extras: Iterable[str] = ()) -> dict[str, str]:
    """Return a package's dependencies with these extras, and their versions."""
    project = tomllib.loads((ROOT / package / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    parts = (re.match(r"([\w.-]+)(?:\[[\w,]+\])?([^;]*)", dependency) for dependency in wanted)
    return {canonical(part[1]): part[2].strip() for part in parts if part}


def optional_in(file: Path, package: str) -> dict[str, str]:
    """Return the dependencies that a module may import because its users install them."""
    of = {"fleets": "testing", "surelane_encryption": "command", "pytest_plugin.py": "testing"}
    extra = of.get(file.name) or of.get(file.parent.name, file.parent.name)
    if extra in ("command", "evals", "mcp", "testing"):
        # What tests of Bolt apps name has the team that writes one.
        return declared(package, [extra]) | ({"slack-bolt": ""} if extra == "testing" else {})
    if extra == "frameworks":
        return dict.fromkeys(imported(file), "")  # a team has its framework already
    if package == "extensions/agents":  # they come with pydantic-ai
        return dict.fromkeys(("fastmcp-slim", "httpx2", "openai", "pydantic-core"), "")
    return declared("shared/client", DRIVERS) if extra == "surelane_drivers" else {}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_program_imports_nothing_that_its_image_or_its_package_does_not_install(package: str) -> None:
    installed = pinned(LOCKS.get(package, "runtime"))
    for module in (ROOT / package / "src").iterdir():
        depends, files = declared(package), list(module.rglob("*.py"))
        assert files
        for file in files:
            optional = optional_in(file, package)
            for distribution in set(imported(file)) - optional.keys():
                assert distribution in installed, f"{file.relative_to(ROOT)} imports {distribution}"
                assert distribution in depends, f"{module.name} does not declare {distribution}"


@pytest.mark.parametrize("package", PACKAGES)
def test_versions_that_a_package_demands_are_the_ones_that_are_tested(package: str) -> None:
    assert declared(package)
    for name, demanded in declared(package).items():
        if demanded.startswith("=="):
            ours = name.partition("-")[0] == "surelane"
            assert demanded[2:] == (version() if ours else pinned("runtime")[name])


def test_a_release_lists_what_its_images_install() -> None:
    for directory, requirements in IMAGES.values():
        dockerfile = (ROOT / directory / "Dockerfile").read_text()
        assert re.search(
            rf"-r requirements/{requirements}\.txt|ARG REQUIREMENTS={requirements}$", dockerfile, re.MULTILINE
        )
