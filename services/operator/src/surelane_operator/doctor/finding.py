"""The finding of a check."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    UNKNOWN = "unknown"
    """The check did not run: this role may not see it, or there is no measurement yet."""
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence about what a check found, and one about what to do."""

    check: str
    level: Level
    found: str
    advice: str | None = None


def ok(check: str, found: str) -> Finding:
    return Finding(check, Level.OK, found)


def judged(check: str, value: float, found: str, advice: str, *, warn: float, fail: float) -> Finding:
    """Return a warning from ``warn`` on, and a problem from ``fail`` on."""
    if value < warn:
        return ok(check, found)
    return Finding(check, Level.PROBLEM if value >= fail else Level.WARNING, found, advice)


def span(seconds: float) -> str:
    """Format a duration for people: ``340 ms``, ``12 s``, ``7 min``, ``3 h``, ``2 d``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
