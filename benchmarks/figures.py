"""Compute small statistics, and format figures for people."""

from collections.abc import Sequence
from math import ceil
from statistics import median as middle


def median(values: Sequence[float]) -> float:
    """Return the median of a benchmark's rounds, which one slow round changes little."""
    return middle(values)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that ``share`` of the values do not exceed (nearest rank)."""
    return sorted(values)[max(ceil(share * len(values)), 1) - 1]


def rate(value: float) -> str:
    """Format events per second."""
    return f"{value:,.0f}"


def ratio(value: float) -> str:
    """Format a ratio of two figures."""
    return f"{value:.2f}"


def milliseconds(seconds: float) -> str:
    """Format a latency in milliseconds."""
    return f"{seconds * 1000:.1f} ms"


def microseconds(seconds: float) -> str:
    """Format the CPU time per event in microseconds."""
    return f"{seconds * 1e6:.1f} µs"


def mebibytes(count: float) -> str:
    """Format an amount of memory in mebibytes."""
    return f"{count / 2**20:.1f} MiB"


def spread(values: Sequence[float]) -> str:
    """Format the lowest and the highest round, which show how reliable the median is."""
    return f"{min(values):,.0f}…{max(values):,.0f}"
