"""The kinds: how many of their events wait, run and failed, whether they are paused, their limits, their workers."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from surelane.calls import Row
from surelane.errors import NotMeasured
from surelane_operator.reads.events import Reads

PAGE = 100


class LimitUse(BaseModel):
    """What runs, and what began in the limit's period, under one key of a limit."""

    limit_key: str
    running: int
    began: int
    blocked_at: datetime | None = Field(
        description="since when events wait for a run to end; null: none does"
    )


class LimitState(BaseModel):
    """The limit of a kind: what holds, and what its workers declare."""

    kind: str
    per: str
    concurrency: int | None
    rate: str | None
    declared_concurrency: int | None
    declared_rate: str | None
    set_at: datetime | None
    set_by: str | None


class KindLimit(LimitState):
    """A kind's limit, and the five keys under which most events run."""

    use: list[LimitUse]


class Counts(BaseModel):
    """A kind's live events. A group counts once as pending and scheduled, by its head."""

    pending: int
    scheduled: int
    running: int
    oldest_pending_age: float = Field(description="seconds; 0 without a pending event")


class Kind(BaseModel):
    """A kind of events."""

    kind: str
    paused: bool
    paused_at: datetime | None
    paused_by: str | None
    max_attempts: int | None = Field(description="as its workers said last; null: none has")
    ordered: bool = Field(description="commands and interactions: whether they keep their thread's order")
    handled_at: datetime | None = Field(description="when a worker that handled it last retired")
    failed: int = Field(description="events that failed in the last day, up to 1,000")
    counts: Counts | None = Field(description="null: not measured yet")
    limit: KindLimit | None
    workers: list[str] = Field(description="the live workers that handle it")


class KindPage(BaseModel):
    """A page of kinds, by name."""

    kinds: list[Kind]
    next: str | None = Field(description="pass it as `after` for the next page; null: this is the last page")
    measured: float | None = Field(description="seconds since the counts were measured; null: not yet")


async def read_kinds(reads: Reads, after: str | None, limit: int = PAGE) -> KindPage:
    """Return a page of kinds. Their counts are measured once for all callers, every 15 seconds at most."""
    rows = await reads.calls.fetch("select * from agent.list_kinds(null, $1, $2)", after, limit)
    kinds, age = await _whole(reads, rows)
    return KindPage(kinds=kinds, next=kinds[-1].kind if len(kinds) == limit else None, measured=age)


async def read_kind(reads: Reads, kind: str) -> Kind | None:
    """Return one kind; ``None``: no event of it was ever stored, and no worker handles it."""
    rows = await reads.calls.fetch("select * from agent.list_kinds($1, null, 1)", kind)
    kinds, _ = await _whole(reads, rows)
    return kinds[0] if kinds else None


async def _whole(reads: Reads, rows: Sequence[Row]) -> tuple[list[Kind], float | None]:
    """Add the counts, limits and workers to the rows, and say how old the counts are."""
    names = [row["kind"] for row in rows]
    counts, age = await _counts(reads)
    workers: dict[str, list[str]] = defaultdict(list)
    for worker in await reads.workers():
        for kind in worker["kinds"] if worker["alive"] else ():
            workers[kind].append(worker["name"])
    limits = await _limits(reads, names)
    kinds: list[Kind] = []
    for row in rows:
        kind = row["kind"]
        more = {"counts": counts.get(kind), "limit": limits.get(kind), "workers": workers[kind]}
        kinds.append(Kind.model_validate(dict(row) | more))
    return kinds, age


async def _counts(reads: Reads) -> tuple[Mapping[str, Counts], float | None]:
    try:
        figures = await reads.figures()
    except NotMeasured:
        return {}, None
    counts = {each.kind: Counts.model_validate(each, from_attributes=True) for each in figures.kinds}
    return counts, figures.age


async def _limits(reads: Reads, kinds: list[str]) -> Mapping[str, Mapping[str, Any]]:
    limits = {row["kind"]: row for row in await reads.list_limits() if row["kind"] in kinds}
    use: dict[str, list[dict[str, Any]]] = defaultdict(list)
    if limits:
        for row in await reads.calls.rows("limit_use", list(limits)):
            use[row["kind"]].append(dict(row))
    return {kind: {**limit, "use": use[kind]} for kind, limit in limits.items()}
