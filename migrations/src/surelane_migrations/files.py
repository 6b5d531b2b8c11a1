"""Read the migration scripts in order, and compare them with the applied ones.

This module uses no database. The scripts of ``incremental/`` run exactly once, those of ``idempotent/`` on
every migration. Each is called ``NNN-name.sql``, numbered from 000 without gaps or doubles. So there is one
order, and two people cannot both add number 7.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from surelane_migrations.errors import DifferentError, ScriptsError

PACKAGED = Path(__file__).parent
"""The directory that holds this release's own scripts."""

_NAME = re.compile(r"(\d{3})-[a-z0-9]+(?:[-_][a-z0-9]+)*\.sql", re.ASCII)
_RULE = (
    "scripts are called NNN-name.sql: three digits from 000 without gaps, then lower-case words with hyphens"
)


@dataclass(frozen=True)
class Script:
    """A script. ``folder`` is ``incremental`` or ``idempotent``."""

    folder: str
    file_name: str
    sql: str

    @property
    def label(self) -> str:
        return f"{self.folder}/{self.file_name}"

    @property
    def checksum(self) -> str:
        """SHA-256 of the text, in hexadecimal."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


@dataclass(frozen=True)
class Scripts:
    """All scripts of a release, each folder in the order of its numbers."""

    incremental: tuple[Script, ...]
    idempotent: tuple[Script, ...]

    def __iter__(self) -> Iterator[Script]:
        yield from self.incremental
        yield from self.idempotent


@dataclass(frozen=True)
class Applied:
    """A row of ``agent.migration``: an applied incremental script, its release and its time."""

    file_name: str
    version: str
    applied_at: datetime
    checksum: str


@dataclass(frozen=True)
class Comparison:
    """The differences between this release's incremental scripts and the applied ones. Only ``pending`` is sound."""

    pending: tuple[Script, ...]
    changed: tuple[str, ...]
    vanished: tuple[str, ...]

    def require_unchanged(self) -> None:
        """Raise DifferentError if an applied script has changed or vanished; name each."""
        problems = [f"incremental/{name} changed after it was applied" for name in self.changed]
        problems += [f"incremental/{name} was applied and is gone" for name in self.vanished]
        if problems:
            raise DifferentError(
                "; ".join(problems) + ". Applied scripts are history: restore them as they were, "
                "and put the change into a new script with the next number."
            )


def compare(scripts: Scripts, applied: Iterable[Applied]) -> Comparison:
    """Compare scripts by file name and checksum.

    Numbers have no gaps and applied scripts cannot vanish, so pending scripts follow all applied ones.
    """
    recorded = {row.file_name: row.checksum for row in applied}
    here = {script.file_name: script.checksum for script in scripts.incremental}
    return Comparison(
        pending=tuple(script for script in scripts.incremental if script.file_name not in recorded),
        changed=tuple(name for name, checksum in recorded.items() if here.get(name, checksum) != checksum),
        vanished=tuple(name for name in recorded if name not in here),
    )


def discover(directory: Path = PACKAGED) -> Scripts:
    """Read the scripts in the folders ``incremental`` and ``idempotent`` of ``directory``.

    Raises:
        ScriptsError: a folder is missing or has no scripts, or a name or text breaks a rule.
    """
    return Scripts(incremental=_read(directory, "incremental"), idempotent=_read(directory, "idempotent"))


def _read(directory: Path, folder: str) -> tuple[Script, ...]:
    if not (directory / folder).is_dir():
        raise ScriptsError(
            f"{directory / folder} is not a directory; scripts are in incremental/ and idempotent/"
        )
    names = sorted(path.name for path in (directory / folder).iterdir() if not path.name.startswith("."))
    if not names:
        raise ScriptsError(f"{directory / folder} holds no scripts; was the package built without them?")
    _check_numbering(folder, names)
    return tuple(_read_script(directory, folder, name) for name in names)


def _check_numbering(folder: str, names: Iterable[str]) -> None:
    """Raise ScriptsError at the first name that does not have the next number. ``names`` are sorted."""
    previous = ""
    for expected, name in enumerate(names):
        match = _NAME.fullmatch(name)
        if not match:
            raise ScriptsError(f"{folder}/{name}: {_RULE}; rename it")
        if previous[:3] == match[1]:
            raise ScriptsError(
                f"{folder}/{previous} and {folder}/{name} have the same number; renumber the later one"
            )
        if int(match[1]) != expected:
            raise ScriptsError(f"{folder}/{name} should have number {expected:03d}: there is a gap before it")
        previous = name


def _read_script(directory: Path, folder: str, name: str) -> Script:
    try:
        # Python reads all line endings as one, so a checkout on Windows has the same checksums.
        sql = (directory / folder / name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScriptsError(f"{folder}/{name} cannot be read as UTF-8 text: {error}") from error
    if not sql.strip() or "\0" in sql:
        raise ScriptsError(
            f"{folder}/{name} is empty or holds a zero byte; write it, or delete it and renumber"
        )
    return Script(folder, name, sql)
