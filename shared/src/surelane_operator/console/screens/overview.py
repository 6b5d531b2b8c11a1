"""The overview: how much waits, how fast it goes, what failed, and what is wrong."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from surelane.errors import NotMeasured
from surelane_operator.console.looks import longest_waiting, recent_figures
from surelane_operator.console.screen import Asked, Screen, Sources, Values
from surelane_operator.filters import Filter
from surelane_service.figures import Figures

MINUTES = 5
"""Throughput and latencies are those of the last minutes."""
UNANSWERED = Filter(["failed", "expired"])
BAD = ("problem", "warning")


def overview(sources: Sources) -> Screen:
    """Make the screen."""
    operations, calls = sources.operations, sources.calls

    async def read(_: Asked) -> Values:
        now = await operations.clock()
        workers = await operations.workers()
        recent = await recent_figures(calls, MINUTES)
        which = Filter(UNANSWERED.statuses, since=now - timedelta(days=7))
        figures = await _figures(sources)
        return {
            "kinds": _kinds(figures, recent, workers),
            "totals": _totals(recent),
            "measured_at": None if figures is None else now - timedelta(seconds=round(figures.age)),
            "behind": 0 if figures is None else figures.group_waiting,
            "workers": workers,
            "alive": sum(worker["alive"] for worker in workers),
            "findings": await _findings(sources),
            "unanswered": await operations.list_jobs(which, 8),
            "waiting": await longest_waiting(calls, 12),
            "minutes": MINUTES,
        }

    return Screen("overview", "/", "Overview", read, every=2.0)


async def _figures(sources: Sources) -> Figures | None:
    try:
        return await sources.operations.figures()
    except NotMeasured:
        return None


async def _findings(sources: Sources) -> list[Any]:
    """Return what the doctor complains about, the worst first."""
    examination = await sources.examination()
    if examination is None:
        return []
    return sorted(
        (each for each in examination.findings if each.level in BAD), key=lambda each: BAD.index(each.level)
    )


def _kinds(
    figures: Figures | None, recent: Sequence[Mapping[str, Any]], workers: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Join what is known of each kind: its depth, what ended, and whether a worker handles it."""
    handled = {kind for worker in workers if worker["alive"] for kind in worker["kinds"]}
    ended: dict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for row in recent:
        ended[row["kind"]][row["outcome"]] = row
    kinds = figures.kinds if figures else ()
    rows = [
        {
            "figures": kind,
            "handled": kind.kind in handled,
            "per_minute": sum(row["per_minute"] for row in ended[kind.kind].values()),
            "bad": sum(
                ended[kind.kind][outcome]["per_minute"]
                for outcome in ("failed", "expired")
                if outcome in ended[kind.kind]
            ),
            "completed": ended[kind.kind].get("completed"),
        }
        for kind in kinds
    ]
    return sorted(rows, key=_activity, reverse=True)


def _activity(row: Mapping[str, Any]) -> tuple[bool, float]:
    kind = row["figures"]
    depth = kind.pending + kind.running + kind.scheduled
    return (depth > 0 or row["per_minute"] > 0, depth)


def _totals(recent: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum the rates. The latencies are the worst of those kinds that completed: a mean would hide a slow kind."""
    completed = [row for row in recent if row["outcome"] == "completed"]
    return {
        "per_minute": sum(row["per_minute"] for row in recent),
        "failed": sum(row["per_minute"] for row in recent if row["outcome"] == "failed"),
        "expired": sum(row["per_minute"] for row in recent if row["outcome"] == "expired"),
        **{
            name: max((row[name] for row in completed if row[name] is not None), default=None)
            for name in ("wait_p50", "wait_p99", "run_p50", "run_p99")
        },
    }
