"""Write a new project of a team from the files below ``template``."""

import keyword
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from string import Template

from surelane import __version__
from surelane.errors import SurelaneError

TEMPLATE = Path(__file__).parent / "template"
KINDS = {kind: Path(__file__).parent / f"template_{kind}" for kind in ("agent", "bolt")}
"""What an agent and a Bolt app have in place of the template's files."""
NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
LONGEST = 30
"""The longest name, so that it fits into those of Slack's apps."""
TAKEN = ("service", "ingest", "worker", "operator", "telemetry")
"""Whose settings Compose takes from ``.env``: by the names in this repository's own files, to which a link leads."""
RENAMED = {name: f".{name}" for name in ("gitignore", "dockerignore", "env.example")}


class NewError(SurelaneError):
    """The project cannot be written; the message says why."""


def write_project(directory: Path, kind: str = "") -> list[str]:
    """Write a project of handlers, or of the kind ``agent`` or ``bolt``. Return the lines that say how to go on.

    Raises:
        NewError: the name cannot be used, the directory has files, or the disk refuses.
    """
    target = directory.expanduser().resolve()
    name, package = _names(target)
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise NewError(f"{target} is not an empty directory; name a new one")
        target.mkdir(parents=True, exist_ok=True)
        for path, text in _files(name, package, kind):
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


def _files(name: str, package: str, kind: str) -> Iterator[tuple[Path, str]]:
    """Return each file with its text. Names are filled into ``.txt``; ``.raw`` is written as it is."""
    parts = tomllib.loads((TEMPLATE / "parts.toml").read_text(encoding="utf-8"))
    given = {"name": name, "package": package, "version": __version__, **parts, **parts.get(kind, {})}
    named = {"package": package, **RENAMED}
    for file in sorted((*TEMPLATE.rglob("*.txt"), *TEMPLATE.rglob("*.raw"))):
        path = file.relative_to(TEMPLATE)
        source = KINDS[kind] / path if kind and (KINDS[kind] / path).exists() else file
        text = source.read_text(encoding="utf-8")
        written = text if file.suffix == ".raw" else Template(text).substitute(given)
        yield Path(*(named.get(part, part) for part in path.with_suffix("").parts)), written
    for service in TAKEN:
        path = Path("compose", f"{service}.env")
        yield path, (TEMPLATE / path).read_text(encoding="utf-8")
