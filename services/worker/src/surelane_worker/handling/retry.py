"""Compute the pause before an event's next attempt: ``base * attempt²``, spread by jitter and bounded by a cap."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

JITTER = 0.1


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pauses between attempts.

    Attributes:
        base: the pause after the first attempt, before jitter.
        cap: the longest pause, jitter included.
        spread: draws from [0, 1). Jitter spreads events that failed together over ±10 %.
    """

    base: timedelta
    cap: timedelta
    spread: Callable[[], float] = random.random

    def pause(self, attempt: int) -> float:
        """Return the seconds until the attempt that follows number ``attempt``; 1 is the first."""
        wanted = self.base.total_seconds() * max(attempt, 1) ** 2
        jittered = wanted * (1 - JITTER + 2 * JITTER * self.spread())
        return min(jittered, self.cap.total_seconds())


def jittered(pause: timedelta, most: float = 0.3, spread: Callable[[], float] = random.random) -> float:
    """Draw seconds between ``pause`` and ``pause * (1 + most)``, so that replicas do not act at the same time."""
    return pause.total_seconds() * (1 + most * spread())
