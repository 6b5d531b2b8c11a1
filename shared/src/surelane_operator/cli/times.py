"""Times for people: how long ago, and the time of the terminal's zone."""

from datetime import UTC, datetime, timedelta

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_DAYS = timedelta(days=14)
"""Until then a time is said by its distance, beyond by its date."""


def moment_of(value: object) -> datetime | None:
    """Return a value that is a time; ``None`` for others."""
    return value if isinstance(value, datetime) else None


def ago(moment: datetime, now: datetime | None = None) -> str:
    """Say a time by its distance: ``3 min ago``, ``in 2 h``; beyond two weeks as a date with its zone."""
    if moment.year >= 9999:
        return "never"
    passed = (now or datetime.now(UTC)) - moment
    if abs(passed) > _DAYS:
        return f"{moment.astimezone():%Y-%m-%d %Z}"
    seconds = abs(passed).total_seconds()
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), (1, "s"))
    if seconds < 1:
        return "now"
    said = f"{seconds // size:.0f} {unit}"
    return f"{said} ago" if passed > timedelta(0) else f"in {said}"


def clock(moment: datetime) -> str:
    """Return the date and time in the terminal's zone, with the zone."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S %Z}"


def short_clock(moment: datetime) -> str:
    """Return a time of day in the terminal's zone, with milliseconds."""
    return f"{moment.astimezone():%H:%M:%S.%f}"[:-3]
