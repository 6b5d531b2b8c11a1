"""Skills: folders with a ``SKILL.md``. The model knows what each is for, and loads one when it needs it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from pydantic_ai import AbstractToolset, FunctionToolset, ModelRetry
from pydantic_ai.capabilities import Capability

from surelane.errors import SettingsError

NAME = re.compile(r"[A-Za-z0-9-]{1,60}")
Wrap = Callable[..., AbstractToolset[Any]]


def skills(folder: Path | None, wrap: Wrap = lambda tools: tools) -> list[Capability[Any]]:
    """Return the skills of a folder. ``wrap`` gets the tool that reads a skill's other files.

    It raises :class:`SettingsError` where there is none, or one has no name and description.
    """
    found = sorted(folder.glob("*/SKILL.md")) if folder else []
    if folder and not found:
        raise SettingsError(f"SURELANE_MODEL_SKILLS: {folder} has no folder with a SKILL.md")
    return [_skill(file, wrap) for file in found]


def _skill(file: Path, wrap: Wrap) -> Capability[Any]:
    home, tools = file.parent.resolve(), FunctionToolset[Any]()
    try:
        _, head, body = file.read_text(encoding="utf-8").split("---\n", 2)
        about = yaml.safe_load(head)
        name, described = str(about["name"]), str(about["description"])
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise SettingsError(f"SURELANE_MODEL_SKILLS: {file}: {type(error).__name__}: {error}") from None
    if not NAME.fullmatch(name):
        raise SettingsError(f"SURELANE_MODEL_SKILLS: {file}: {name!r} is no name of letters and hyphens")

    def read(path: str) -> str:
        """Read a file of the skill, by its path there."""
        if not (found := (home / path).resolve()).is_relative_to(home):
            raise ModelRetry(f"{path} is no file of the skill")
        return found.read_text(encoding="utf-8")

    if any(each.is_file() and each.name != file.name for each in home.rglob("*")):
        tools.add_function(read, name=f"read_{name}")
    more: Any = {"toolsets": [wrap(tools)], "defer_loading": True}
    return Capability(id=name, description=described, instructions=body, **more)
