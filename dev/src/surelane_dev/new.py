"""Write a new project of a team from the files below ``template``."""

import keyword
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from string import Template

from surelane import __version__
from surelane.errors import SurelaneError

TEMPLATE = Path(__file__).parent / "template"
NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
LONGEST = 30
"""The longest name, so that it fits into those of Slack's apps."""
RENAMED = {"gitignore": ".gitignore", "dockerignore": ".dockerignore"}


class NewError(SurelaneError):
    """The project cannot be written; the message says why."""


def write_project(directory: Path) -> list[str]:
    """Write a project, and return the lines that say how to go on.

    Raises:
        NewError: the name cannot be used, the directory has files, or the disk refuses.
    """
    target = directory.expanduser().resolve()
    name, package = _names(target)
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise NewError(f"{target} is not an empty directory; name a new one")
        target.mkdir(parents=True, exist_ok=True)
        for path, text in _files(name, package):
            (target / path).parent.mkdir(exist_ok=True)
            (target / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise NewError(f"cannot write {target}: {error.strerror}") from None
    enter = [] if target == Path.cwd() else [f"  cd {directory}"]
    return [f"{name} is in {target}. Go on:", *enter, "  surelane dev", f"Then edit {package}/handlers.py."]


def _names(target: Path) -> tuple[str, str]:
    """Return the project's name and its package's."""
    name, package = target.name, target.name.replace("-", "_")
    refused = f"{name!r} cannot be a bot's name"
    if not NAME.fullmatch(name) or len(name) > LONGEST:
        rule = f"use at most {LONGEST} small letters, digits and single hyphens, and begin with a letter"
        raise NewError(f"{refused}: {rule}")
    if package in sys.stdlib_module_names or keyword.iskeyword(package) or package in {"test", "tests"}:
        raise NewError(f"{refused}: Python has a module or a keyword of that name")
    if package.partition("_")[0] == "surelane":
        raise NewError(f"{refused}: names that begin with surelane are Surelane's own")
    return name, package


def _files(name: str, package: str) -> Iterator[tuple[Path, str]]:
    given = {"name": name, "package": package, "version": __version__}
    for file in sorted(TEMPLATE.rglob("*.txt")):
        path = file.relative_to(TEMPLATE).with_suffix("")
        parts = [package if part == "package" else RENAMED.get(part, part) for part in path.parts]
        yield Path(*parts), Template(file.read_text(encoding="utf-8")).substitute(given)
