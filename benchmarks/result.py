"""Define the result of a benchmark: figures, verdicts on the targets, and charts."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Table:
    """A table of figures. The first cell of a row is its name."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Verdict:
    """A target beside its measured figure."""

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
    """A line chart. Each series has (x, y) points."""

    title: str
    x: str
    y: str
    series: dict[str, Sequence[tuple[float, float]]]


@dataclass(frozen=True)
class Result:
    """The result of a benchmark."""

    title: str
    how: str
    """The load, the rounds and the settings, as a Markdown paragraph. Line breaks mean nothing in it."""

    table: Table
    verdicts: Sequence[Verdict]
    plots: Sequence[Bars | Lines] = field(default_factory=tuple)
