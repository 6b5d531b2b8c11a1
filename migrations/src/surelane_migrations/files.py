"""Read the migration scripts in order, and compare them with the applied ones.

This module uses no database. The scripts of ``incremental/`` run exactly once, those of ``idempotent/`` on
every migration. Each is called ``NNN-name.sql``, numbered from 000 without gaps or doubles. So there is one
order, and two people cannot both add number 7.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
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
class ScriptStatus:
    """An incremental script and its row of ``agent.migration``. ``state`` is applied, pending, changed or vanished."""

    file_name: str
    version: str | None = None
    applied_at: datetime | None = None
    checksum: str | None = None
    state: str = "applied"


@dataclass(frozen=True)
class Comparison:
    """This release's incremental scripts beside the applied ones."""

    scripts: tuple[ScriptStatus, ...]
    pending: tuple[Script, ...]

    @property
    def problems(self) -> list[str]:
        """What is wrong with applied scripts."""
        wrong = {"changed": "changed after it was applied", "vanished": "was applied and is gone"}
        return [
            f"incremental/{one.file_name} {wrong[one.state]}" for one in self.scripts if one.state in wrong
        ]

    def require_unchanged(self) -> None:
        """Raise DifferentError if an applied script has changed or vanished; name each."""
        if self.problems:
            raise DifferentError(
                "; ".join(self.problems) + ". Applied scripts are history: restore them as they were, "
                "and put the change into a new script with the next number."
            )


def compare(scripts: Scripts, applied: Iterable[ScriptStatus]) -> Comparison:
    """Compare scripts by file name and checksum.

    Numbers have no gaps and applied scripts cannot vanish, so pending scripts follow all applied ones.
    """
    pending = {script.file_name: script for script in scripts.incremental}
    found = []
    for row in applied:
        script = pending.pop(row.file_name, None)
        state = (
            "applied" if script and script.checksum == row.checksum else "changed" if script else "vanished"
        )
        found.append(replace(row, state=state))
    found += [ScriptStatus(name, state="pending") for name in pending]
    return Comparison(tuple(found), tuple(pending.values()))


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
