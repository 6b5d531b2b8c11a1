"""The kinds: what waits, runs and failed of each, who handles it, its limit; pause, resume, change the limit."""

from surelane_operator.console.screen import Asked, Missing, Screen, Sources, Values
from surelane_operator.panels.kinds import KindLimit, read_kind, read_kinds


def kinds(sources: Sources) -> Screen:
    """Make the screen of all kinds."""

    async def read(asked: Asked) -> Values:
        page = await read_kinds(sources.operations, sources.calls, asked.word("after"))
        return {"page": page, "limit_text": limit_text, "first": asked.word("after") is None}

    return Screen("kinds", "/kinds", "Kinds", read)


def kind(sources: Sources) -> Screen:
    """Make the screen of one kind."""

    async def read(asked: Asked) -> Values:
        name = asked.path["kind"]
        found = await read_kind(sources.operations, sources.calls, name)
        if found is None:
            raise Missing(f"No event of the kind {name} was ever stored, and no worker handles it.")
        return {"kind": found, "limit_text": limit_text}

    return Screen("kind", "/kinds/{kind}", "Kind", read, listed=False, within="kinds")


def limit_text(limit: KindLimit) -> str:
    """Say a limit in words: ``3 at once, 60/1m per workspace``."""
    bounds = []
    if limit.concurrency is not None:
        bounds.append(f"{limit.concurrency:,} at once")
    if limit.rate is not None:
        bounds.append(limit.rate)
    per = {"kind": "", "given": " per given key"}.get(limit.per, f" per {limit.per}")
    return (", ".join(bounds) or "lifted") + (per if bounds else "")
