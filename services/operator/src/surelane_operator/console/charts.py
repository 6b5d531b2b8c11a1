"""What ``charts.html`` draws beside trends: the heat of workspaces by the hour, and a run's steps as a waterfall."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from surelane_operator.reads.timeline import moment_of, step_label
from surelane_operator.reads.trends import Trend


def heat_of(trend: Trend, most: int = 10) -> tuple[list[datetime], list[tuple[str, list[tuple[int, int]]]]]:
    """Return a day's hours, and the counts with their heat (0 to 5) of the workspaces with the most events."""
    busiest = sorted(trend.workspaces.items(), key=lambda item: -sum(item[1]))[:most]
    hours = [(name, [round(sum(of[nth : nth + 2])) for nth in range(0, 48, 2)]) for name, of in busiest]
    top = max((max(counts) for _, counts in hours), default=0) or 1
    heat = [(name, [(number, -(-number * 5 // top)) for number in counts]) for name, counts in hours]
    return [*trend.starts[::2]], heat


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
