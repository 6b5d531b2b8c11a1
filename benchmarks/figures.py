"""Small statistics, and figures as people read them."""

from collections.abc import Sequence
from math import ceil
from statistics import median as middle


def median(values: Sequence[float]) -> float:
    """The middle of a benchmark's rounds; one slow round moves it little."""
    return middle(values)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of the values do not exceed (nearest rank)."""
    return sorted(values)[max(ceil(share * len(values)), 1) - 1]


def rate(value: float) -> str:
    """Events a second."""
    return f"{value:,.0f}"


def ratio(value: float) -> str:
    """One figure against another."""
    return f"{value:.2f}"


def milliseconds(seconds: float) -> str:
    """A latency."""
    return f"{seconds * 1000:.1f} ms"


def microseconds(seconds: float) -> str:
    """CPU time an event."""
    return f"{seconds * 1e6:.1f} µs"


def mebibytes(count: float) -> str:
    """Memory."""
    return f"{count / 2**20:.1f} MiB"


def spread(values: Sequence[float]) -> str:
    """The lowest and the highest of the rounds, which say how far to trust their median."""
    return f"{min(values):,.0f}…{max(values):,.0f}"
