"""Write a new project of a team from the files below ``template``."""

import keyword
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from string import Template

from surelane import __version__
from surelane.errors import SurelaneError

TEMPLATE = Path(__file__).parent / "template"
KINDS = {kind: Path(__file__).parent / f"template_{kind}" for kind in ("agent", "bolt")}
"""What an agent and a Bolt app have in place of the template's files, or besides."""
NEEDS = {"agent": ("surelane_agents", "pydantic_ai"), "bolt": ("surelane_bolt", "slack_bolt")}
"""The modules that the handlers of a kind import."""
NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
FILLED = (".txt", ".raw")
LONGEST = 30
"""The longest name, so that it fits into those of Slack's apps."""
TAKEN = ("service", "ingest", "worker", "operator", "telemetry")
"""Whose settings Compose takes from ``.env``: by the names in this repository's own files, to which a link leads."""
COMPONENTS = ("operator", "network-policies", "ingress", "keda")
"""The components of Kustomize that a project's overlay may use, beside the base."""
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
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise NewError(f"cannot write {target}: {error.strerror}") from None
    enter = [] if target == Path.cwd() else [f"  cd {directory}"]
    steps = [*enter, *_install(kind), "  surelane dev"]
    return [f"{name} is in {target}. Go on:", *steps, f"Then edit {package}/handlers.py."]


def _install(kind: str) -> list[str]:
    """Return how to install what a project of a kind needs and is not there: from where Surelane's wheels are."""
    if all(find_spec(module) for module in NEEDS.get(kind, ())):
        return []
    links = os.environ.get("PIP_FIND_LINKS") or os.environ.get("UV_FIND_LINKS") or ""
    pip, named = "pip" if find_spec("pip") else "uv pip", shlex.quote(links) if links else "DIRECTORY"
    which = "" if links else "   # the directory with Surelane's wheels"
    return [f"  {pip} install --find-links {named} --editable '.[dev]'{which}"]


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
    roots = [TEMPLATE, KINDS[kind]] if kind else [TEMPLATE]
    files = {
        file.relative_to(root): file for root in roots for file in root.rglob("*.*") if file.suffix in FILLED
    }
    for path, file in sorted(files.items()):
        text = file.read_text(encoding="utf-8")
        written = text if file.suffix == ".raw" else Template(text).substitute(given)
        yield Path(*(named.get(part, part) for part in path.with_suffix("").parts)), written
    for path in _taken():
        yield path, (TEMPLATE / path).read_text(encoding="utf-8")


def _taken() -> Iterator[Path]:
    """Return the files of this repository that a project gets as they are: links lead to them."""
    yield from (Path("compose", f"{service}.env") for service in TAKEN)
    for part in ("base", *(f"components/{name}" for name in COMPONENTS)):
        folder = Path("k8s/surelane", part)
        yield from (
            folder / file.relative_to(TEMPLATE / folder) for file in (TEMPLATE / folder).rglob("*.yaml")
        )
