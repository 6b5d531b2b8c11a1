"""The overview: how much waits, how fast it goes, what failed, and what is wrong."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from surelane.errors import NotMeasured
from surelane_operator.console.screen import Asked, Sources, Values
from surelane_operator.reads.filters import Filter
from surelane_operator.reads.overview import MINUTES, UNANSWERED, WEEK
from surelane_service.figures import Figures

BAD = ("problem", "warning")


async def overview(sources: Sources, _: Asked) -> Values:
    """Read the overview."""
    reads = sources.reads
    now = await reads.clock()
    workers = await reads.workers()
    recent = await reads.recent_figures(MINUTES)
    figures = await _figures(sources)
    return {
        "kinds": _kinds(figures, recent, workers),
        "totals": _totals(recent),
        "measured_at": None if figures is None else now - timedelta(seconds=round(figures.age)),
        "behind": 0 if figures is None else figures.group_waiting,
        "workers": workers,
        "alive": sum(worker["alive"] for worker in workers),
        "findings": await _findings(sources),
        "unanswered": await reads.list_events(Filter(UNANSWERED, since=now - WEEK), 8),
        "waiting": await reads.longest_waiting(12),
        "minutes": MINUTES,
    }


async def _figures(sources: Sources) -> Figures | None:
    try:
        return await sources.reads.figures()
    except NotMeasured:
        return None


async def _findings(sources: Sources) -> list[Any]:
    """Return what the doctor complains about, the worst first."""
    examination = await sources.examination()
    bad = [each for each in examination.findings if each.level in BAD] if examination else []
    return sorted(bad, key=lambda each: BAD.index(each.level))


def _kinds(
    figures: Figures | None, recent: Sequence[Mapping[str, Any]], workers: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Join what is known of each kind: its depth, what ended, and whether a worker handles it."""
    handled = {kind for worker in workers if worker["alive"] for kind in worker["kinds"]}
    ended: dict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for row in recent:
        ended[row["kind"]][row["outcome"]] = row
    rows = [
        {
            "figures": kind,
            "handled": kind.kind in handled,
            "per_minute": _rate(ended[kind.kind].values()),
            "bad": _rate(row for outcome, row in ended[kind.kind].items() if outcome in UNANSWERED),
            "completed": ended[kind.kind].get("completed"),
        }
        for kind in (figures.kinds if figures else ())
    ]
    return sorted(rows, key=_activity, reverse=True)


def _rate(rows: Iterable[Mapping[str, Any]]) -> float:
    return float(sum(row["per_minute"] for row in rows))


def _activity(row: Mapping[str, Any]) -> tuple[bool, float]:
    kind = row["figures"]
    depth = kind.pending + kind.running + kind.scheduled
    return (depth > 0 or row["per_minute"] > 0, depth)


def _totals(recent: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum the rates. The latencies are the worst of those kinds that completed: a mean would hide a slow kind."""
    completed = [row for row in recent if row["outcome"] == "completed"]
    return {
        "per_minute": _rate(recent),
        "failed": _rate(row for row in recent if row["outcome"] == "failed"),
        "expired": _rate(row for row in recent if row["outcome"] == "expired"),
        **{
            name: max((row[name] for row in completed if row[name] is not None), default=None)
            for name in ("wait_p50", "wait_p99", "run_p50", "run_p99")
        },
    }
