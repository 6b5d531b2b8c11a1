"""Durations and rates as people write them: ``500ms``, ``10m`` or plain seconds; ``60/1m`` is 60 in any minute."""

import random
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|m|h|d)?", re.ASCII)


def parse_duration(value: object) -> timedelta:
    """Read a duration: a timedelta, seconds, or text, a number with ``ms``, ``s``, ``m``, ``h``, ``d`` or no unit.

    Raises:
        ValueError: anything else, a negative one, or one of more than 3,650 days.
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif match := _DURATION.fullmatch(str(value).strip().lower()):
        seconds = float(match[1]) * _UNITS[match[2] or "s"]
    else:
        raise ValueError(f"{value!r} is not a duration: write 500ms, 0.5s, 10m, 1h, or a number of seconds")
    if seconds > 3650 * 86400:
        raise ValueError(f"{value!r} is longer than 3650 days")
    if seconds < 0:
        raise ValueError("a duration cannot be negative")
    return value if isinstance(value, timedelta) else timedelta(seconds=seconds)


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
"""A pydantic field type that takes what :func:`parse_duration` reads."""


def jittered(pause: timedelta, most: float = 0.3) -> float:
    """Draw seconds between ``pause`` and ``pause * (1 + most)``, so that replicas do not act at the same time."""
    return pause.total_seconds() * random.uniform(1, 1 + most)  # noqa: S311 - no secret


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


def read_limit_rate(text: str) -> Rate:
    """Read a rate of a limit: ``none``, which lifts it, has the count 0. It raises as :func:`parse_rate` does."""
    return Rate(0, timedelta()) if text == "none" else parse_rate(text)


def rate_text(count: int, period: timedelta) -> str:
    """Write a rate as :func:`parse_rate` reads it."""
    seconds = period.total_seconds()
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{count}/{seconds / length:.0f}{unit}"
    return f"{count}/{seconds:g}s"
