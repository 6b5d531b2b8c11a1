"""What a check found."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    UNKNOWN = "unknown"
    """This role may not see it."""
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found, in a sentence, and what to do about it."""

    check: str
    level: Level
    found: str
    advice: str | None = None


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(check, Level.OK, found)


def judged(check: str, value: float, found: str, advice: str, *, warn: float, fail: float) -> Finding:
    """A finding by how large a value is: from ``warn`` on a warning, from ``fail`` on a problem."""
    if value < warn:
        return ok(check, found)
    return Finding(check, Level.PROBLEM if value >= fail else Level.WARNING, found, advice)


def span(seconds: float) -> str:
    """A time for people: ``340 ms``, ``12 s``, ``7 min``, ``3 h``, ``2 d``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
