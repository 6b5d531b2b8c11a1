"""What the operator's API takes and answers. The OpenAPI document is made from these models."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StringConstraints,
    model_validator,
)

from surelane_operator.operations import Filter
from surelane_service.cron import CatchUp, Cron

NAME = "^[^\u0000-\u001f\u007f-\u009f\u2028\u2029]{1,200}$"
"""What a name in a path may be."""

Status = Literal["pending", "scheduled", "running", "completed", "failed", "cancelled", "expired"]
Ended = Literal["completed", "failed", "cancelled", "expired"]
Kind = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00]*$")]
Key = Annotated[str, StringConstraints(min_length=1, max_length=1000, pattern=r"^[^\x00]*$")]
Identity = Annotated[int, Field(ge=1, le=2**63 - 1)]


def _split(value: object) -> object:
    return [part for part in value.split(",") if part] if isinstance(value, str) else value


def _written(value: object) -> object:
    """Pydantic would take numbers for seconds since 1970; a time is written out, as the document says."""
    if not isinstance(value, str) or "-" not in value[1:]:
        raise ValueError("write a time as 2026-01-31T12:00:00Z")
    return value


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("write a time of the years 1 to 9999, in UTC") from None


Moment = Annotated[AwareDatetime, BeforeValidator(_written), AfterValidator(_in_utc)]


class Strict(BaseModel):
    """Unknown names are errors: a misspelt filter must not mean no filter."""

    model_config = ConfigDict(extra="forbid")


class Which(Strict):
    """Which events; what is left out means any."""

    kind: list[Kind] | None = Field(None, description="exact kinds")
    key: Key | None = Field(None, description="an item key, a group key or a dedupe key")
    since: Moment | None = Field(None, description="enqueued, or ended if it has, at or after")
    until: Moment | None = Field(None, description="enqueued, or ended if it has, before")

    def filter(self, statuses: Sequence[str] | None) -> Filter:
        """The same for the queue's client."""
        return Filter(statuses, self.kind, self.key, self.since, self.until)


class JobsQuery(Which):
    """The query of ``GET /v1/jobs``."""

    kind: Annotated[list[Kind] | None, BeforeValidator(_split)] = Field(
        None, description="separated by commas"
    )
    status: Annotated[list[Status] | None, BeforeValidator(_split)] = Field(
        None, description="separated by commas"
    )
    limit: int = Field(20, ge=1, le=1000)
    cursor: str | None = Field(None, max_length=100, description="next, as the page before gave it")


class Requeue(Which):
    """The body of a bulk requeue: ended events that match, the newest first."""

    status: Annotated[list[Ended], Field(min_length=1)]
    limit: int = Field(100, ge=1, le=1000)


class Orchestrate(Strict):
    """The body of ``POST /v1/orchestrate``: what the plan is made for."""

    goal: Annotated[str, StringConstraints(min_length=1, max_length=20_000, pattern=r"^[^\x00]*$")]
    subtasks: list[Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]] | None = Field(
        None,
        max_length=10_000,
        description="given, they are the plan; left out, the orchestrator-plan handler makes it",
    )
    fails_with_children: StrictBool = Field(
        False, description="end as failed with the first subtask that does not complete"
    )
    dedupe_key: Key | None = None


class CronBody(Strict):
    """The body of ``PUT /v1/cron/{name}``."""

    kind: Kind
    schedule: Annotated[str, StringConstraints(max_length=200)] = Field(
        description="five fields, as cron has them"
    )
    payload: dict[str, Any] = Field(default_factory=dict)
    time_zone: Annotated[str, StringConstraints(max_length=100)] = "UTC"
    catch_up: CatchUp = "one"
    paused: StrictBool = False

    @model_validator(mode="after")
    def _readable(self) -> Self:
        Cron(self.schedule, self.time_zone)
        return self


class ListedJob(BaseModel):
    """An event, live or ended, as a list shows it: without what may be large."""

    model_config = ConfigDict(extra="ignore")

    id: int
    kind: str
    status: Status
    attempts: int
    max_attempts: int | None
    locked_by: str | None
    run_at: datetime | None = Field(
        description="when it is visible; of one that runs or ran, when the latest attempt began; null: waits"
    )
    lease_until: datetime | None = Field(description="of a running one, when its lease ends")
    error: str | None = Field(description="the latest attempt's; a list shows its first 1,000 characters")
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
    trace_id: str


class Job(ListedJob):
    """An event, whole."""

    payload: Any
    errors: list[Any]
    result: Any


class Step(BaseModel):
    """Something that happened to an event."""

    at: datetime
    what: str
    by: str | None
    detail: str | None


class JobPage(BaseModel):
    """A page of events, newest first: live ones, then ended ones."""

    jobs: list[ListedJob]
    next: str | None = Field(description="the cursor of the next page; null: this is the last")


class JobStory(Job):
    """An event and all that happened to it."""

    timeline: list[Step]


class Why(BaseModel):
    """Why an event is not running."""

    reason: str
    detail: str


class Ids(BaseModel):
    """The events that were moved back into the queue."""

    requeued: list[int]


class Cancelled(BaseModel):
    """``running``: its attempt goes on and no other follows."""

    status: Literal["cancelled", "running"]


class Started(BaseModel):
    """The job that was enqueued, or the pending one under its dedupe key."""

    id: int


class KindState(BaseModel):
    """How many events of a kind are in each state."""

    kind: str
    paused: bool
    pending: int
    scheduled: int
    running: int
    oldest_pending: datetime | None


class WorkerState(BaseModel):
    """A worker as it last announced itself."""

    name: str
    kinds: list[str]
    version: str
    alive: bool
    started_at: datetime
    seen_at: datetime


class Stats(BaseModel):
    """The queue in figures."""

    kinds: list[KindState]
    workers: list[WorkerState]


class CronState(CronBody):
    """A named schedule."""

    name: str
    next_at: datetime
    last_at: datetime | None
    updated_at: datetime
    updated_by: str


class CronList(BaseModel):
    """The named schedules."""

    schedules: list[CronState]


class Problem(BaseModel):
    """Why a request was refused."""

    error: str
