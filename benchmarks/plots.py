# mypy: disable-error-code="import-not-found, unused-ignore"
"""Draw charts as SVG files that are readable on light and dark pages."""

from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from benchmarks.result import Bars, Lines

INK = "#7d8590"
COLOURS = ("#2f81f7", "#db6d28", "#3fb950", "#a371f7", "#db61a2")

mpl.use("svg")
mpl.rcParams.update(
    {
        "svg.hashsalt": "surelane",  # the same figures give the same file
        "svg.fonttype": "none",
        "font.size": 10,
        "text.color": INK,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": INK,
        "ytick.color": INK,
    }
)


def draw(plot: Bars | Lines, path: Path) -> None:
    """Draw a chart into an SVG file."""
    height = 1.2 + 0.4 * len(plot.values) if isinstance(plot, Bars) else 3.2
    figure, axes = plt.subplots(figsize=(7.5, height), layout="constrained")
    axes.set_title(plot.title, loc="left")
    if isinstance(plot, Bars):
        _bars(axes, plot)
    else:
        _lines(axes, plot)
    figure.savefig(path, format="svg", transparent=True, metadata={"Date": None})
    plt.close(figure)


def _bars(axes: Axes, plot: Bars) -> None:
    names = list(plot.values)
    colours = [COLOURS[0] if name.startswith("surelane") else INK for name in names]
    bars = axes.barh(names, list(plot.values.values()), color=colours)
    axes.bar_label(bars, fmt=lambda value: f"{value:,.0f}" if value >= 100 else f"{value:.3g}", padding=4)
    axes.invert_yaxis()
    axes.set_xlabel(plot.unit)
    axes.margins(x=0.12)


def _lines(axes: Axes, plot: Lines) -> None:
    for (name, points), colour in zip(plot.series.items(), COLOURS, strict=False):
        axes.plot([x for x, _ in points], [y for _, y in points], label=name, color=colour)
    axes.set_xlabel(plot.x)
    axes.set_ylabel(plot.y)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
