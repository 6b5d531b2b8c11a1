"""What a benchmark hands over: the figures, whether they meet their targets, and what to draw."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Table:
    """Figures as rows; a row's first cell names what was measured."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Verdict:
    """A target beside the figure that was measured for it."""

    target: str
    measured: str
    met: bool


@dataclass(frozen=True)
class Bars:
    """A horizontal bar chart."""

    title: str
    unit: str
    values: dict[str, float]


@dataclass(frozen=True)
class Lines:
    """A line chart; each series is (x, y) points."""

    title: str
    x: str
    y: str
    series: dict[str, Sequence[tuple[float, float]]]


@dataclass(frozen=True)
class Result:
    """A benchmark's outcome."""

    title: str
    how: str
    """What was run, how often, with which settings; a Markdown paragraph, its line breaks of no meaning."""

    table: Table
    verdicts: Sequence[Verdict]
    plots: Sequence[Bars | Lines] = field(default_factory=tuple)
