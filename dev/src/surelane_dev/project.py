"""Find the project of a directory: the nearest ``pyproject.toml`` with a table ``[tool.surelane]``."""

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surelane.errors import SettingsError
from surelane_service.manifest import MANIFEST, found_manifest


@dataclass(frozen=True)
class Project:
    """A team's project, or a directory without one."""

    root: Path
    handlers: str | None = None
    """``module:attribute`` of the handlers; ``None``: the built-in ones."""
    manifest: Path | None = None
    """The manifest of the Slack app."""
    model: str | None = None
    """The model of agents. ``fake``: the simulator's, which needs no account."""

    @property
    def settings(self) -> dict[str, str]:
        """The variables that name them. Those of the environment win over the project's."""
        given = {"SURELANE_HANDLERS": self.handlers, "SURELANE_MODEL": self.model}
        manifest = self.manifest or found_manifest(self.root)
        given[MANIFEST] = str(manifest) if manifest else None
        return {name: found for name, value in given.items() if (found := os.environ.get(name) or value)}

    @property
    def is_a_teams(self) -> bool:
        """Whether a team's handlers run, so that their code is worth watching."""
        return "SURELANE_HANDLERS" in self.settings


def find_project(start: Path) -> Project:
    """Return the project of ``start`` or of the nearest directory above it.

    Raises:
        SettingsError: its ``pyproject.toml`` cannot be read, or its table has something else.
    """
    start = start.resolve()
    for directory in (start, *start.parents):
        path = directory / "pyproject.toml"
        if path.is_file() and (table := _table(path)) is not None:
            names = ("handlers", "manifest", "model")
            if unknown := table.keys() - set(names):
                known = "knows handlers, manifest and model"
                raise SettingsError(f"{path}: [tool.surelane] {known}, not {min(unknown)}")
            handlers, manifest, model = (_text(path, table, name) for name in names)
            return Project(directory, handlers, directory / manifest if manifest else None, model)
    return Project(start)


def _table(path: Path) -> dict[str, Any] | None:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("surelane")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from None
    if table is None or isinstance(table, dict):
        return table
    raise SettingsError(f"{path}: tool.surelane is not a table")


def _text(path: Path, table: dict[str, Any], name: str) -> str | None:
    value = table.get(name)
    if value is None or (isinstance(value, str) and value):
        return value
    raise SettingsError(f"{path}: [tool.surelane] {name} is not a text")
