"""The queue: kinds, workflows, schedules, workers, questions to people, the doctor's findings, what operators did."""

from surelane_operator.console.screen import Asked, Missing, Sources, Values
from surelane_operator.reads.filters import MAX_ID, Cursor, read_cursor
from surelane_operator.reads.kinds import KindLimit, read_kind, read_kinds
from surelane_operator.reads.questions import list_questions
from surelane_operator.reads.schedules import read_schedules
from surelane_operator.reads.workers import ALL, KNOWN_BY, read_workers
from surelane_operator.reads.workflows import PAGE, is_partial, list_workflows, read_workflow

LIST = 50
WORKFLOWS = 30
LEVELS = ("problem", "warning", "unknown", "ok")


async def waiting(sources: Sources, asked: Asked) -> Values:
    """Read the questions that handlers asked with ``ctx.ask``, and that have no answer yet."""
    cursor = _begin(asked)
    page = await list_questions(sources.reads, cursor, LIST)
    asks = [(each, sources.links.to_message(None, each.channel, each.ts)) for each in page.questions]
    return {"questions": asks, "next": page.next, "first": cursor is None}


async def kinds(sources: Sources, asked: Asked) -> Values:
    """Read the kinds: what waits, runs and failed of each, who handles it, its limit."""
    after = asked.word("after")
    return {"page": await read_kinds(sources.reads, after), "limit_text": _limit_text, "first": after is None}


async def kind(sources: Sources, asked: Asked) -> Values:
    """Read one kind."""
    found = await read_kind(sources.reads, asked.path["kind"])
    if found is None:
        raise Missing(f"No event of the kind {asked.path['kind']} was ever stored, and no worker handles it.")
    return {"kind": found, "limit_text": _limit_text}


async def workflows(sources: Sources, asked: Asked) -> Values:
    """Read the workflows, newest first."""
    cursor = _begin(asked)
    page = await list_workflows(sources.reads.calls, cursor, WORKFLOWS)
    return {"workflows": page.workflows, "next": page.next, "first": cursor is None}


async def workflow(sources: Sources, asked: Asked) -> Values:
    """Read one workflow, seen from any of its events."""
    given, after = _number(asked.path["id"]), _number(asked.word("after") or "0")
    found = None
    if given is not None and after is not None:
        found = await read_workflow(sources.reads.calls, given, after)
    if found is None:
        raise Missing(f"There is no event {asked.path['id'][:40]}.")
    return {"workflow": found, "asked": given, "after": after, "page": PAGE, "is_partial": is_partial}


async def schedules(sources: Sources, _: Asked) -> Values:
    """Read the named schedules: when each fires next, and what became of its last run."""
    return {"schedules": (await read_schedules(sources.reads)).schedules}


async def schedule(sources: Sources, asked: Asked) -> Values:
    """Read one schedule."""
    for each in (await read_schedules(sources.reads)).schedules:
        if each.name == asked.path["name"]:
            return {"schedule": each}
    raise Missing(f"There is no schedule {asked.path['name']}.")


async def workers(sources: Sources, _: Asked) -> Values:
    """Read the workers: whether each is alive and how that is known, what it handles, what it runs now."""
    return {"workers": (await read_workers(sources.reads, each=3)).workers, "known_by": KNOWN_BY}


async def worker(sources: Sources, asked: Asked) -> Values:
    """Read one worker."""
    found = (await read_workers(sources.reads, asked.path["name"], ALL)).workers
    if not found:
        raise Missing(f"There is no worker {asked.path['name']}. Workers that ended are taken off the list.")
    return {"worker": found[0], "known_by": KNOWN_BY}


async def doctor(sources: Sources, _: Asked) -> Values:
    """Read the doctor's findings, the worst first."""
    examination = await sources.examination()
    findings = examination.findings if examination else []
    return {
        "examination": examination,
        "findings": sorted(findings, key=lambda each: LEVELS.index(each.level)),
    }


async def actions(sources: Sources, asked: Asked) -> Values:
    """Read the kept actions: who did what, when, and what came of it."""
    before, target = _number(asked.word("before") or ""), asked.word("target")
    found = await sources.reads.audit.list_actions(LIST, before=before, target=target)
    return {
        "actions": found,
        "next": found[-1]["id"] if len(found) == LIST else None,
        "first": before is None,
        "target": target,
        "address": _address,
    }


def _begin(asked: Asked) -> Cursor | None:
    """Return the place in a list that the query names; ``None``: the first page."""
    text = asked.word("cursor")
    try:
        return None if text is None else read_cursor(text)
    except ValueError:
        raise Missing("This page of the list does not exist. Begin with the first one.") from None


def _number(text: str) -> int | None:
    """Return an id that an address names; ``None``: it names none."""
    return int(text) if text.isascii() and text.isdigit() and int(text) <= MAX_ID else None


def _limit_text(limit: KindLimit) -> str:
    """Say a limit in words: ``3 at once, 60/1m per workspace``."""
    bounds = []
    if limit.concurrency is not None:
        bounds.append(f"{limit.concurrency:,} at once")
    if limit.rate is not None:
        bounds.append(limit.rate)
    per = {"kind": "", "given": " per given key"}.get(limit.per, f" per {limit.per}")
    return (", ".join(bounds) or "lifted") + (per if bounds else "")


def _address(target: str) -> str | None:
    """Return the path of the screen that shows an action's target; ``None``: none does."""
    sort, _, name = target.partition(" ")
    return f"{sort}s" if name and sort in ("event", "kind", "schedule", "worker") else None
