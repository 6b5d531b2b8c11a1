"""An event as lists and its story show it."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from surelane.jobs import Priority
from surelane_operator.reads.filters import Status
from surelane_operator.reads.timeline import Step, trace_of


def _visible_at(moment: datetime | None) -> datetime | None:
    # PostgreSQL's infinity arrives as the last moment of the year 9999.
    return None if moment is None or moment.year == 9999 else moment


class ListedEvent(BaseModel):
    """An event, live or ended, as a list shows it: without its large fields."""

    id: int
    kind: str
    status: Status
    attempts: int
    max_attempts: int | None
    locked_by: str | None
    run_at: Annotated[datetime | None, BeforeValidator(_visible_at)] = Field(
        description="when it becomes visible, or when its latest attempt began; null: it waits for events"
    )
    lease_until: datetime | None = Field(description="when the lease of a running event ends")
    error: str | None = Field(
        description="of the latest error: its message, or where that is left out its type"
    )
    reason: str | None
    dedupe_key: str | None
    item_key: str | None
    group_key: str | None
    event_ts: datetime
    enqueued_at: datetime
    enqueued_by: str
    heartbeat_at: datetime | None
    deadline: datetime | None
    finished_at: datetime | None
    finished_by: str | None
    continuation_id: int | None
    waits_for: int | None
    priority: Priority
    trace_id: str

    @model_validator(mode="before")
    @classmethod
    def _traced(cls, row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "trace_id": trace_of(row)}


class EventStory(ListedEvent):
    """An event with all its fields and its timeline."""

    why: str = Field(description="a sentence: why it waits, or how it ended")
    payload: Any = Field(description="null where the query leaves it out")
    errors: list[Any] = Field(description="without their texts where the query leaves the payload out")
    result: Any = Field(description="null where the query leaves the payload out")
    rerun_of: int | None = Field(description="the event that this one runs again")
    rerun_as: list[int] = Field(description="the events that run this one again")
    tags: dict[str, str]
    progress: str | None = Field(description="what the handler said last of its progress")
    timeline: list[Step]
