"""Copy this tree with a fault in its sources."""

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.mutants.table import Mutant

ROOT = Path(__file__).parents[2]
TESTS = re.compile(r"((dev|extensions/[^/]+)/)?tests/|conftest\.py")


def changed(mutant: Mutant) -> dict[str, str]:
    """Return the texts of the files that a fault changes. ``LookupError``: the table and the sources differ."""
    texts: dict[str, str] = {}
    for edit in mutant.edits:
        text = texts.get(edit.file) or (ROOT / edit.file).read_text()
        old, new = "\n".join(edit.old), "\n".join(edit.new)
        found = list(however_wrapped(old).finditer(text))
        if len(found) != 1 or old == new:
            raise LookupError(f"{mutant.name}: {edit.file} has {len(found)} times, not once:\n{old}")
        texts[edit.file] = text[: found[0].start()] + new + text[found[0].end() :]
    return texts


def however_wrapped(text: str) -> re.Pattern[str]:
    """Return a pattern of a text whose lines may end elsewhere in the source. Its own indent has to be there."""
    indent = text[: len(text) - len(text.lstrip())]
    words = (re.split(r"(?<=[(])(?=.)|(?<=.)(?=[,)])", word) for word in text.split())
    return re.compile(indent + r"\s+".join(r"\s*".join(map(re.escape, parts)) for parts in words))


@contextmanager
def copied(mutant: Mutant | None = None, tests_from: Path = ROOT) -> Iterator[Path]:
    """Copy the tree, perhaps with a fault; tests come from another checkout if one is given."""
    with TemporaryDirectory(prefix="surelane-mutant-") as directory:
        tree = Path(directory)
        for root in {ROOT, tests_from}:
            for name in _files(root):
                if root == (tests_from if TESTS.match(name) else ROOT):
                    (tree / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(root / name, tree / name, follow_symlinks=False)
        for name, text in ({} if mutant is None else changed(mutant)).items():
            (tree / name).write_text(text)
        yield tree


def environment(tree: Path) -> dict[str, str]:
    """Return the environment in which programs import the sources of a copy instead of the installed ones."""
    sources = tomllib.loads((tree / "pyproject.toml").read_text())["tool"]["mypy"]["mypy_path"]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(str(tree / each) for each in sources)}


def _files(root: Path) -> list[str]:
    """Return the files of a checkout, except those that git ignores."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=root, capture_output=True, check=True, text=True).stdout.split("\0")
    return [name for name in names if name and os.path.lexists(root / name)]
