"""What ``charts.html`` draws: bars over time, the heat of workspaces by the hour, and a run's steps as a waterfall."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from surelane_operator.doctor.finding import span
from surelane_operator.reads.timeline import moment_of, step_label
from surelane_operator.reads.trends import Trend


class Chart(NamedTuple):
    """Stacked bars. ``series``: names, the states whose colours they have, and a value for each label."""

    title: str
    labels: Sequence[str]
    series: Sequence[tuple[str, str, Sequence[float]]]
    words: Any = "{:,.0f}".format


def trend_charts(trend: Trend) -> list[Chart]:
    """Draw how deep the queue was, how events ended, and how long they waited."""
    labels, first = [f"{start:%H:%M}" for start in trend.starts], trend.starts[0]
    part, depths = trend.starts[1] - first, [[0, 0, 0]] * len(labels)
    for at, depth in trend.depths:  # each holds until the next measurement, five minutes later
        for nth in range((at - first) // part, (at - first) // part + max(timedelta(minutes=5) // part, 1)):
            if 0 <= nth < len(labels):
                depths[nth] = depth
    states = ("pending", "running", "scheduled", "completed", "cancelled", "failed", "expired")
    values = [
        *map(list, zip(*depths, strict=True)),
        *(trend.ended.get(each, [0.0] * len(labels)) for each in states[3:]),
    ]
    series = list(zip(states, states, values, strict=True))
    p50, p95 = zip(*((p50, p95 - p50) for p50, p95 in trend.waits), strict=True)
    waits = [("p50", "running", p50), ("from there to p95", "scheduled", p95)]
    return [
        Chart("Depth", labels, series[:3]),
        Chart("Completed and cancelled", labels, series[3:5]),
        Chart("Failed and expired", labels, series[5:]),
        Chart("Wait for a worker", labels, waits, span),
    ]


def heat_of(trend: Trend, most: int = 10) -> tuple[list[str], list[tuple[str, list[tuple[int, int]]]]]:
    """Return a day's hours, and the counts with their heat (0 to 5) of the workspaces with the most events."""
    busiest = sorted(trend.workspaces.items(), key=lambda item: -sum(item[1]))[:most]
    hours = [
        (name, [round(counts[nth] + counts[nth + 1]) for nth in range(0, 48, 2)]) for name, counts in busiest
    ]
    top = max((max(counts) for _, counts in hours), default=0) or 1
    heat = [(name, [(number, -(-number * 5 // top)) for number in counts]) for name, counts in hours]
    return [f"{start:%H:%M}" for start in trend.starts[::2]], heat


def waterfall(event: Mapping[str, Any], most: int = 100) -> list[dict[str, Any]]:
    """Return when the first steps, sleeps and waits of an event began, and how long they took, of 1,000."""
    steps = [step for step in event["steps"] if step["sort"] in ("step", "sleep", "wait")][:most]
    times = [(moment_of(step["started_at"]), moment_of(step["finished_at"])) for step in steps]
    last = event["finished_at"] or max((at for pair in times for at in pair if at), default=None)
    bars = list[dict[str, Any]]()
    for step, (began, ended) in zip(steps, times, strict=True):
        first = times[0][0]
        if began and first and last:
            after, took = (began - first).total_seconds(), ((ended or last) - began).total_seconds()
            whole = max((last - first).total_seconds(), 0.001) / 1000
            state = (
                "failed" if step["failed"] else "completed" if step["sort"] == "step" and ended else "waits"
            )
            bar = {"state": state, "x": max(round(after / whole), 0), "width": max(round(took / whole), 4)}
            bars.append(
                bar | {"name": step_label(step), "after": span(after), "took": span(took) if ended else None}
            )
    return bars
