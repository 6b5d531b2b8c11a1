"""What ``charts.html`` draws: bars over time, the heat of workspaces by the hour, and a run's steps as a waterfall."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from surelane_operator.doctor.finding import span
from surelane_operator.reads.timeline import moment_of, step_label
from surelane_operator.reads.trends import Trend


def count(value: float) -> str:
    """Write a count for people."""
    return f"{value:,.0f}"


@dataclass(frozen=True, slots=True)
class Chart:
    """Stacked bars. ``series``: names, the states whose colours they have, and a value for each label, if known."""

    name: str
    title: str
    labels: Sequence[str]
    series: Sequence[tuple[str, str, Sequence[float | None]]]
    words: Any = count

    def rows(self) -> Iterator[tuple[int, str, Sequence[float | None]]]:
        """Yield the number, the label and the values of each stack."""
        for nth, label in enumerate(self.labels):
            if any(values := [each[nth] for _, _, each in self.series]):
                yield nth, label, values


def trend_charts(trend: Trend) -> list[Chart]:
    """Draw how deep the queue was, how events ended, and how long they waited."""
    labels, known = [f"{start:%H:%M}" for start in trend.starts], dict[int, Sequence[int]]()
    part = trend.starts[1] - trend.starts[0]
    for at, depth in trend.depths:  # each stands for the five minutes that follow, too
        first = (at - trend.starts[0]) // part
        known |= dict.fromkeys(range(first, first + max(timedelta(minutes=5) // part, 1)), depth)
    depths = [known.get(nth, (None, None, None)) for nth in range(len(labels))]
    waits = [each or (None, None) for each in trend.waits]
    ended = {
        name: (name, name, trend.ended.get(name) or [None] * len(labels))
        for name in ("completed", "cancelled", "failed", "expired")
    }
    states = [
        (name, name, [depth[nth] for depth in depths])
        for nth, name in enumerate(("pending", "running", "scheduled"))
    ]
    above = [None if p95 is None or p50 is None else p95 - p50 for p50, p95 in waits]
    wait = [("p50", "running", [p50 for p50, _ in waits]), ("from there to p95", "scheduled", above)]
    return [
        Chart("depth", "Depth", labels, states),
        Chart("ended", "Completed and cancelled", labels, [ended["completed"], ended["cancelled"]]),
        Chart("unanswered", "Failed and expired", labels, [ended["failed"], ended["expired"]]),
        Chart("wait", "Wait for a worker", labels, wait, span),
    ]


def heat_of(trend: Trend, most: int = 10) -> tuple[list[str], list[tuple[str, list[tuple[int, int]]]]]:
    """Return a day's hours, and the counts with their heat (0 to 5) of the workspaces with the most events."""
    busiest = sorted(trend.workspaces.items(), key=lambda item: -sum(item[1]))[:most]
    hours = {name: [round(sum(counts[nth : nth + 2])) for nth in range(0, 48, 2)] for name, counts in busiest}
    top = max((max(counts) for counts in hours.values()), default=0) or 1
    rows = [(name, [(number, -(-number * 5 // top)) for number in counts]) for name, counts in hours.items()]
    return [f"{start:%H:%M}" for start in trend.starts[::2]], rows


def waterfall(event: Mapping[str, Any], most: int = 100) -> list[dict[str, Any]]:
    """Return the first steps, sleeps and waits of an event: when each began, and how long it took, of a thousand."""
    steps = [step for step in event["steps"] if step["sort"] in ("step", "sleep", "wait") and step["started_at"]]
    times = [(moment_of(step["started_at"]), moment_of(step["finished_at"])) for step in steps]
    first = min([event["enqueued_at"], *(began for began, _ in times if began)])
    last = max(first, *(at for pair in times for at in pair if at), event["finished_at"] or datetime.now(UTC))
    whole = (last - first).total_seconds() or 1
    bars = []
    for step, (began, ended) in zip(steps[:most], times, strict=False):
        after, took = ((began or first) - first).total_seconds(), ((ended or last) - (began or first)).total_seconds()
        state = "failed" if step["failed"] else "waits" if step["sort"] != "step" else "completed" if ended else "running"
        scale = {"x": round(1000 * after / whole), "width": max(round(1000 * took / whole), 4)}
        bars.append({"name": step_label(step), "state": state, "after": span(after), "took": span(took) if ended else None} | scale)
    return bars
