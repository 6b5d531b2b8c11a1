"""What ``charts.html`` draws: bars over time, the heat of workspaces by the hour, and a run's steps as a waterfall."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from surelane_operator.doctor.finding import span
from surelane_operator.reads.timeline import moment_of, step_label
from surelane_operator.reads.trends import Trend


def trend_charts(trend: Trend) -> list[dict[str, Any]]:
    """Return stacked bars: how deep the queue was, how events ended, how long they waited.

    A series has a name, the state whose colour it has, and a value for each label.
    """
    labels, first = [f"{start:%H:%M}" for start in trend.starts], trend.starts[0]
    part, depths = trend.starts[1] - first, [[0, 0, 0]] * len(labels)
    for at, depth in trend.depths:  # each holds until the next measurement, five minutes later
        for nth in range((at - first) // part, (at - first) // part + max(timedelta(minutes=5) // part, 1)):
            if 0 <= nth < len(labels):
                depths[nth] = depth
    known = {
        name: [depth[nth] for depth in depths] for nth, name in enumerate(("pending", "running", "scheduled"))
    }
    ended = {
        name: trend.ended.get(name, [0.0] * len(labels))
        for name in ("completed", "cancelled", "failed", "expired")
    }
    series = [(name, name, values) for name, values in (known | ended).items()]
    waits = (
        ("p50", "running", [p50 for p50, _ in trend.waits]),
        ("p50 to p95", "scheduled", [p95 - p50 for p50, p95 in trend.waits]),
    )
    drawn = {"Depth": series[:3], "Completed and cancelled": series[3:5], "Failed and expired": series[5:]}
    charts = [
        {"title": title, "labels": labels, "series": each, "words": "{:,.0f}".format}
        for title, each in drawn.items()
    ]
    return [*charts, {"title": "Wait for a worker", "labels": labels, "series": waits, "words": span}]


def heat_of(trend: Trend, most: int = 10) -> tuple[list[str], list[tuple[str, list[tuple[int, int]]]]]:
    """Return a day's hours, and the counts with their heat (0 to 5) of the workspaces with the most events."""
    busiest = sorted(trend.workspaces.items(), key=lambda item: -sum(item[1]))[:most]
    hours = [(name, [round(sum(of[nth : nth + 2])) for nth in range(0, 48, 2)]) for name, of in busiest]
    top = max((max(counts) for _, counts in hours), default=0) or 1
    heat = [(name, [(number, -(-number * 5 // top)) for number in counts]) for name, counts in hours]
    return [f"{start:%H:%M}" for start in trend.starts[::2]], heat


def waterfall(event: Mapping[str, Any], most: int = 100) -> list[dict[str, Any]]:
    """Return after how many seconds the first steps, sleeps and waits of an event began, and how long they took."""
    steps = [step for step in event["steps"] if step["sort"] in ("step", "sleep", "wait")][:most]
    times = [(moment_of(step["started_at"]), moment_of(step["finished_at"])) for step in steps]
    last = event["finished_at"] or max((at for pair in times for at in pair if at), default=None)
    bars = list[dict[str, Any]]()
    for step, (began, ended) in zip(steps, times, strict=True):
        if began and last and times[0][0]:
            state = (
                "failed" if step["failed"] else "completed" if step["sort"] == "step" and ended else "waits"
            )
            seconds = {
                "after": (began - times[0][0]).total_seconds(),
                "took": ((ended or last) - began).total_seconds(),
            }
            bars.append({"name": step_label(step), "state": state, "ended": ended, **seconds})
    return bars
