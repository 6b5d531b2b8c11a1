"""The named schedules: when each fires next, and what became of its last run."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel, Field

from surelane.calls import Calls
from surelane.jobs import Priority
from surelane_operator.reads.events import Reads
from surelane_operator.reads.filters import Status
from surelane_service.cron import CatchUpText, Cron, Overlap

NEXT = 5
"""Firings that are shown."""


class Firing(BaseModel):
    """The job that a schedule stored for a time."""

    id: int
    scheduled_at: datetime
    status: Status
    reason: str | None
    error: str | None
    finished_at: datetime | None


class Schedule(BaseModel):
    """A named schedule."""

    name: str
    kind: str
    schedule: str = Field(description="five cron fields")
    time_zone: str
    payload: dict[str, Any]
    catch_up: CatchUpText
    paused: bool
    priority: Priority
    overlap: Overlap
    jitter: float = Field(description="seconds after its time that a firing comes, at most")
    next_at: datetime
    last_at: datetime | None = Field(description="when a worker last fired it")
    updated_at: datetime
    updated_by: str
    following: list[datetime] = Field(description="its next five firings; none while it is paused")
    last_run: Firing | None = Field(
        description="the newest job that it stored, while it is live or in history"
    )


class ScheduleList(BaseModel):
    """The named schedules, by name."""

    schedules: list[Schedule]


async def read_schedules(reads: Reads) -> ScheduleList:
    """Return all named schedules, their payloads decrypted."""
    rows = await reads.list_cron()
    now = await reads.clock()
    runs = await _last_runs(reads.calls, rows)
    schedules: list[Schedule] = []
    for row in rows:
        more = {"jitter": row["jitter"].total_seconds(), "following": _following(row, now)}
        schedules.append(Schedule.model_validate(row | more | {"last_run": runs.get(row["name"])}))
    return ScheduleList(schedules=schedules)


def _following(row: Mapping[str, Any], now: datetime) -> list[datetime]:
    """Return the next firings. One that is overdue comes first: a worker is about to fire it."""
    cron = _readable(row)
    if row["paused"] or cron is None:
        return []
    times = [row["next_at"].astimezone(UTC)]
    while len(times) < NEXT:
        times.append(cron.next_firing(max(times[-1], now)))
    return times


async def _last_runs(calls: Calls, rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Find each schedule's newest job, by the times for which it may have been stored."""
    wanted = [(row["name"], time, row["last_at"]) for row in rows for time in _last_times(row)]
    if not wanted:
        return {}
    names, times, fired = zip(*wanted, strict=True)
    found = await calls.rows("firings", names, times, fired)
    return {row["name"]: dict(row) for row in sorted(found, key=lambda row: row["scheduled_at"])}


def _last_times(row: Mapping[str, Any]) -> Iterator[datetime]:
    """Yield the times for which the last job may have been stored.

    That is the last time before the firing. Where missed times are caught up with in several rounds, it is the last
    one before the next firing.
    """
    cron = _readable(row)
    if row["last_at"] is None or cron is None:
        return
    yield from {cron.last_until(row["last_at"]), cron.last_until(row["next_at"] - timedelta(seconds=1))}


def _readable(row: Mapping[str, Any]) -> Cron | None:
    """Return a schedule's times; ``None``: SQL stored a schedule that cannot be read."""
    try:
        return Cron(row["schedule"], row["time_zone"], row["jitter"], row["name"])
    except ValueError:
        return None
