"""The workers: whether each is alive and how that is known, what it handles, and what it runs now."""

from collections import defaultdict
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from surelane_operator.reads.events import Reads

EACH = 10
"""Running events that are shown of a worker in the list."""
ALL = 200
"""Running events that are shown of one worker."""

KNOWN_BY = {
    "alive": "its session is open, or it announced itself in the last 90 seconds",
    "drained": "it lives, and claims nothing until it is resumed",
    "lost": "its session is gone; it has some seconds to open another",
    "died": "its session ended and it opened no other; its claims were ended",
    "silent": "it has announced nothing for 90 seconds",
}
"""How a worker's state is known."""


class Running(BaseModel):
    """An event that a worker runs. A group is shown by its head."""

    id: int
    kind: str
    item_key: str | None
    group_key: str | None
    attempts: int
    claimed_at: datetime
    lease_until: datetime


class WorkerState(BaseModel):
    """A worker as it last announced itself, and whether it lives.

    Its session is a lock that PostgreSQL drops as its connection ends. ``lost``: the session is gone, and the worker
    has some seconds to open another. ``died``: it opened none, and its claims were ended. ``silent``: it has announced
    nothing for 90 seconds.
    """

    name: str
    kinds: list[str]
    version: str
    alive: bool
    state: Literal["alive", "drained", "lost", "died", "silent"]
    started_at: datetime
    seen_at: datetime
    died_at: datetime | None


class Worker(WorkerState):
    """A worker, and what it runs."""

    clock_offset: float | None = Field(description="seconds that its clock is ahead of the database's")
    max_attempts: int | None
    slots: int | None = Field(description="handlers that it runs at once; null: it has not said")
    interactive_slots: int | None = Field(description="those for commands and interactions, besides")
    running: int = Field(description="events that it runs now")
    runs: list[Running] = Field(description="some of these events, those that began first")


class WorkerList(BaseModel):
    """The workers of the last day, by name."""

    workers: list[Worker]


async def read_workers(reads: Reads, name: str | None = None, each: int = EACH) -> WorkerList:
    """Return the workers, or the one of that name."""
    known = [row for row in await reads.workers() if name in (None, row["name"])]
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in await reads.calls.rows("list_running", name, each):
        runs[row["worker"]].append(dict(row))
    rows = await reads.calls.fetch("select name, slots, interactive_slots from agent.worker")
    said = {row["name"]: row for row in rows}
    silent = {"slots": None, "interactive_slots": None}
    return WorkerList(
        workers=[_worker(row | dict(said.get(row["name"], silent)), runs[row["name"]]) for row in known]
    )


def _worker(row: dict[str, Any], runs: list[dict[str, Any]]) -> Worker:
    offset = row["clock_offset"]
    seconds = None if offset is None else offset.total_seconds()
    more = {"clock_offset": seconds, "running": runs[0]["running"] if runs else 0, "runs": runs}
    return Worker.model_validate(row | more)
