"""Durations as people write them, such as ``500ms``, ``10m`` or plain seconds, and pauses with jitter."""

import random
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|m|h|d)?", re.ASCII)


def parse_duration(value: object) -> timedelta:
    """Read a duration.

    Args:
        value: a timedelta, a number of seconds, or text: a decimal number with an optional unit
            (``ms``, ``s``, ``m``, ``h``, ``d``; seconds where none is given).

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


def jittered(pause: timedelta, most: float = 0.3, spread: Callable[[], float] = random.random) -> float:
    """Draw seconds between ``pause`` and ``pause * (1 + most)``, so that replicas do not act at the same time."""
    return pause.total_seconds() * (1 + most * spread())
