"""Watch the Python files of a directory but its tests, ``pyproject.toml`` and the app's manifest for changes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from watchfiles import Change, DefaultFilter, awatch

from surelane_service.manifest import NAMES

IGNORED = (*DefaultFilter.ignore_dirs, ".surelane", ".ruff_cache", "build", "dist")
TESTS = ("tests", "test")
TEST_FILES = (r"^test_.*\.py$", r"_test\.py$", r"^conftest\.py$")
"""Patterns of names. No handler runs what a test says."""
STEP = 20
"""Milliseconds without a change after which a change is reported."""
DEBOUNCE = 200
"""Milliseconds for which changes that go on are collected at most."""


class _Code(DefaultFilter):
    """Python files, the project's settings and its manifest, outside of caches, environments and tests."""

    ignore_dirs = (*IGNORED, *TESTS)
    ignore_entity_patterns = (*DefaultFilter.ignore_entity_patterns, *TEST_FILES)

    def __call__(self, change: Change, path: str) -> bool:
        """Return whether a change of ``path`` counts."""
        wanted = path.endswith(".py") or Path(path).name in ("pyproject.toml", *NAMES)
        return wanted and super().__call__(change, path)


async def watch(root: Path, changed: Callable[[list[str]], None]) -> None:
    """Report the names of changed files, below ``root``, until it is cancelled.

    Watch each folder of ``root`` by itself: the database below ``.surelane`` writes all the time, and an environment
    has thousands of folders.
    """
    while True:
        folders = _folders(root)
        async with asyncio.TaskGroup() as group:
            inner = group.create_task(_report(_changes(*folders), root, changed)) if folders else None
            async for found in _changes(root, recursive=False, watch_filter=None):
                code = _Code()
                if names := sorted({path for change, path in found if code(change, path)}):
                    changed([_below(name, root) for name in names])
                if _folders(root) != folders:
                    break
            if inner is not None:
                inner.cancel()


async def _report(
    changes: AsyncIterator[set[tuple[Change, str]]], root: Path, changed: Callable[[list[str]], None]
) -> None:
    async for found in changes:
        changed(sorted({_below(path, root) for _, path in found}))


def _changes(*folders: Path, **more: Any) -> AsyncIterator[set[tuple[Change, str]]]:  # noqa: ANN401 - of watchfiles
    usual = {"watch_filter": _Code(), "step": STEP, "debounce": DEBOUNCE, "ignore_permission_denied": True}
    return awatch(*folders, **{**usual, **more})


def _folders(root: Path) -> list[Path]:
    """Return the folders that may have code. One with a ``pyvenv.cfg`` is an environment."""
    found = (path for path in root.iterdir() if path.is_dir() and path.name not in (*IGNORED, *TESTS))
    return sorted(path for path in found if not (path / "pyvenv.cfg").exists())


def _below(path: str, root: Path) -> str:
    return str(Path(path).relative_to(root)) if Path(path).is_relative_to(root) else path
