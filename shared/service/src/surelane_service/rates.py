"""Rates as people write them: ``60/1m`` is at most 60 in any minute."""

import re
from dataclasses import dataclass
from datetime import timedelta

from surelane_service.durations import parse_duration

MOST = 1_000_000
"""The highest count of a rate; the database's number, too (``agent.check_limit``)."""
SHORTEST, LONGEST = timedelta(milliseconds=100), timedelta(days=1)
"""The bounds of a rate's period; the database's, too."""
MOST_AT_ONCE = 10_000
"""The highest concurrency of a limit; the database's number, too."""

_RATE = re.compile(r"\s*(\d{1,9})\s*/\s*(\S.*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``count`` in any ``period``."""

    count: int
    period: timedelta


def parse_rate(text: object) -> Rate:
    """Read a rate, such as ``60/1m``: a count, and a duration with its unit.

    Raises:
        ValueError: it is anything else, the count is not from 1 to a million, or the period not from 100 ms to a day.
    """
    match = _RATE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not a rate: write a count and a period, such as 60/1m")
    count, period = int(match[1]), parse_duration(match[2])
    if not 1 <= count <= MOST:
        raise ValueError(f"the count of a rate is from 1 to {MOST}, not {count}")
    if not SHORTEST <= period <= LONGEST:
        raise ValueError(f"the period of a rate is from 100ms to 1d, not {match[2]}")
    return Rate(count, period)


def rate_text(count: int, period: timedelta) -> str:
    """Write a rate as :func:`parse_rate` reads it."""
    seconds = period.total_seconds()
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{count}/{seconds / length:.0f}{unit}"
    return f"{count}/{seconds:g}s"
