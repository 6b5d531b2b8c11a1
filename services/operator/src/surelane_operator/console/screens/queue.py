"""The overview, kinds, workflows, schedules, workers, usage, questions to people, findings, operators' actions."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from surelane_operator.console.charts import heat_of
from surelane_operator.console.screen import Missing, ScreenAddress, Sources, Values, number
from surelane_operator.reads import queue
from surelane_operator.reads.feedback import count_feedback, list_feedback
from surelane_operator.reads.filters import Filter
from surelane_operator.reads.trends import SPANS
from surelane_operator.reads.workflows import PAGE, list_workflows, read_workflow
from surelane_operator.shards import read_shards
from surelane_service.figures import Figures

LIST = 50
WORKFLOWS = 30
LEVELS = ("problem", "warning", "unknown", "ok")


async def waiting(sources: Sources, asked: ScreenAddress) -> Values:
    """Read the questions that handlers asked with ``ctx.ask``, and that have no answer yet."""
    cursor = asked.cursor("cursor")
    page = await queue.list_questions(sources.reads, cursor, LIST)
    asks = [(each, sources.links.to_message(None, each.channel, each.ts)) for each in page.questions]
    return {"questions": asks, "next": page.next, "first": cursor is None}


async def feedback(sources: Sources, asked: ScreenAddress) -> Values:
    """Read what people think of answers. The page is not live, because each look at what they wrote is kept."""
    given = {name: asked.word(name) for name in ("workspace", "rating")}
    which = given["workspace"], None, given["rating"]
    return {
        "given": given,
        "counts": await count_feedback(sources.reads, *which),
        "ratings": [each async for each in list_feedback(sources.reads, *which)],
    }


async def kinds(sources: Sources, asked: ScreenAddress) -> Values:
    """Read the kinds: what waits, runs and failed of each, who handles it, its limit."""
    after = asked.word("after")
    page = await queue.read_kinds(sources.reads, after)
    return {"page": page, "limit_text": _limit_text, "first": after is None}


async def kind(sources: Sources, asked: ScreenAddress) -> Values:
    found = await queue.read_kind(sources.reads, asked.path["kind"])
    if found is None:
        raise Missing(f"No event of the kind {asked.path['kind']} was ever stored, and no worker handles it.")
    return {"kind": found, "limit_text": _limit_text, **await _over_time(sources, asked, found.kind)}


async def _over_time(sources: Sources, asked: ScreenAddress, kind: str | None = None) -> Values:
    given = asked.word("span") or ""
    trend = await sources.reads.trends.latest(kind, span := given if given in SPANS else "hour")
    return {"trend": trend, "span": span}


async def workflows(sources: Sources, asked: ScreenAddress) -> Values:
    """Read the workflows, newest first."""
    cursor = asked.cursor("cursor")
    page = await list_workflows(sources.reads.calls, cursor, WORKFLOWS)
    return {"workflows": page.workflows, "next": page.next, "first": cursor is None}


async def workflow(sources: Sources, asked: ScreenAddress) -> Values:
    """Read one workflow, seen from any of its events."""
    given, after = number(asked.path["id"]), number(asked.word("after") or "0")
    found = None
    if given is not None and after is not None:
        found = await read_workflow(sources.reads.calls, given, after)
    if found is None:
        raise Missing(f"There is no event {asked.path['id'][:40]}.")
    return {"workflow": found, "asked": given, "after": after, "page": PAGE}


async def schedules(sources: Sources, _: ScreenAddress) -> Values:
    """Read the named schedules: when each fires next, and what became of its last run."""
    return {"schedules": (await queue.read_schedules(sources.reads)).schedules}


async def schedule(sources: Sources, asked: ScreenAddress) -> Values:
    for each in (await queue.read_schedules(sources.reads)).schedules:
        if each.name == asked.path["name"]:
            return {"schedule": each}
    raise Missing(f"There is no schedule {asked.path['name']}.")


async def workers(sources: Sources, _: ScreenAddress) -> Values:
    """Read the workers: whether each is alive and how that is known, what it handles, what it runs now."""
    return {"workers": (await queue.read_workers(sources.reads, each=3)).workers, "known_by": queue.KNOWN_BY}


async def worker(sources: Sources, asked: ScreenAddress) -> Values:
    found = (await queue.read_workers(sources.reads, asked.path["name"], queue.ALL)).workers
    if not found:
        raise Missing(f"There is no worker {asked.path['name']}. Workers that ended are taken off the list.")
    return {"worker": found[0], "known_by": queue.KNOWN_BY}


async def shards(sources: Sources, _: ScreenAddress) -> Values:
    """Read all installations that ``SURELANE_SHARDS`` names."""
    return {"shards": await read_shards(sources.shards)}


async def usage(sources: Sources, _: ScreenAddress) -> Values:
    """Read what models used: requests, tokens and cost by day, workspace and model."""
    found = (await queue.list_usage(sources.reads)).usage
    days = [found[0].day - timedelta(days=nth) for nth in reversed(range(30))] if found else []
    return {"usage": found, "most": queue.MOST_USAGE, "days": days}


async def doctor(sources: Sources, _: ScreenAddress) -> Values:
    """Read the doctor's findings, the worst first."""
    examination = await sources.examination()
    return {"examination": examination, "findings": _worst_first(examination, LEVELS)}


async def actions(sources: Sources, asked: ScreenAddress) -> Values:
    """Read the kept actions: who did what, when, and what came of it."""
    before, target = number(asked.word("before") or ""), asked.word("target")
    found = await sources.reads.audit.list_actions(LIST, before=before, target=target)
    return {
        "actions": found,
        "next": found[-1]["id"] if len(found) == LIST else None,
        "first": before is None,
        "target": target,
        "address": _address,
    }


def _limit_text(limit: queue.KindLimit) -> str:
    """Say a limit in words: ``3 at once, 60/1m per workspace``."""
    at_once = None if limit.concurrency is None else f"{limit.concurrency:,} at once"
    bounds = [each for each in (at_once, limit.rate) if each is not None]
    per = {"kind": "", "given": " per given key"}.get(limit.per, f" per {limit.per}")
    return (", ".join(bounds) or "lifted") + (per if bounds else "")


def _address(target: str) -> str | None:
    """Return the path of the screen that shows an action's target; ``None``: none does."""
    sort, _, name = target.partition(" ")
    return f"{sort}s" if name and sort in ("event", "kind", "schedule", "worker") else None


BAD = ("problem", "warning")


async def overview(sources: Sources, asked: ScreenAddress) -> Values:
    reads = sources.reads
    now = await reads.clock()
    workers = await reads.workers()
    recent = await reads.recent_figures(queue.MINUTES)
    figures = await reads.measured()
    kinds = _kinds(figures, recent, workers)
    return {
        "shards": len(sources.shards),
        **{
            name: [each for each in kinds if _group_of(each) == name]
            for name in ("busy", "quiet", "internal")
        },
        "totals": _totals(recent),
        "measured_at": None if figures is None else now - timedelta(seconds=round(figures.age)),
        "behind": 0 if figures is None else figures.group_waiting,
        "alive": sum(worker["alive"] for worker in workers),
        "lacking": lacking(workers),
        "findings": _worst_first(await sources.examination(), BAD),
        "unanswered": await reads.list_events(Filter(queue.UNANSWERED, since=now - queue.WEEK), 8),
        "waiting": await reads.longest_waiting(12),
        "minutes": queue.MINUTES,
        "heat": heat_of(await reads.trends.latest(None, "day")),
        **await _over_time(sources, asked),
    }


def lacking(workers: Sequence[Mapping[str, Any]]) -> int:
    """Count the workers that are gone and that none replaced: no other one began since the first of them went."""
    gone = [worker["seen_at"] for worker in workers if not worker["alive"]]
    begun = [worker for worker in workers if worker["alive"] and gone and worker["started_at"] > min(gone)]
    return max(len(gone) - len(begun), 0)


def _group_of(row: Mapping[str, Any]) -> str:
    if str(row["figures"].kind).startswith("surelane."):
        return "internal"
    return "busy" if _activity(row)[0] or row["figures"].paused else "quiet"


def _worst_first(examination: Any, levels: Sequence[str]) -> list[Any]:  # noqa: ANN401 - as Sources has it
    """Return the doctor's findings of some levels, in the order of these."""
    found = [each for each in examination.findings if each.level in levels] if examination else []
    return sorted(found, key=lambda each: levels.index(each.level))


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
            "bad": _rate(row for outcome, row in ended[kind.kind].items() if outcome in queue.UNANSWERED),
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
