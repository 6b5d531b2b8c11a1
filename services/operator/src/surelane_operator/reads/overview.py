"""The queue in one answer: what waits the longest and why, what failed or expired, and how fast it goes."""

from datetime import datetime, timedelta

from pydantic import BaseModel, Field

from surelane_operator.reads.events import Reads
from surelane_operator.reads.filters import Ended, Filter
from surelane_operator.reads.shown import ListedEvent
from surelane_operator.reads.timeline import sentence

MINUTES = 5
"""The figures are those of the last minutes."""
WEEK = timedelta(days=7)
UNANSWERED = ("failed", "expired")
EACH = 10
"""Events of each list."""


class WaitingEvent(BaseModel):
    """A live event that has waited for long."""

    id: int
    kind: str
    group_key: str | None
    enqueued_at: datetime
    why: str


class Pace(BaseModel):
    """What ended in the last minutes, of one kind and outcome. Times are seconds, of attempts."""

    kind: str
    outcome: Ended
    per_minute: float
    wait_p50: float | None = Field(description="from storing to the first claim")
    wait_p99: float | None
    run_p50: float | None
    run_p99: float | None


class Overview(BaseModel):
    """What waits, what was not answered, and how fast it goes."""

    at: datetime
    waiting: list[WaitingEvent] = Field(description="events that have waited the longest, some of each kind")
    unanswered: list[ListedEvent] = Field(description="the newest that failed or expired in the last week")
    pace: list[Pace] = Field(description=f"of the last {MINUTES} minutes")


async def read_overview(reads: Reads) -> Overview:
    """Return the overview. Depth by kind is :func:`~surelane_operator.reads.kinds.read_kinds`'."""
    now = await reads.clock()
    waiting = await reads.longest_waiting(EACH)
    return Overview.model_validate(
        {
            "at": now,
            "waiting": [{**row, "why": sentence(row["reason"], row["detail"])} for row in waiting],
            "unanswered": await reads.list_events(Filter(UNANSWERED, since=now - WEEK), EACH),
            "pace": await reads.recent_figures(MINUTES),
        }
    )
