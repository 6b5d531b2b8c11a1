"""Models of what the operator's API reads and answers. Its OpenAPI document is made from them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StrictBool,
    StrictInt,
    StringConstraints,
    model_validator,
)

from surelane.jobs import Priority
from surelane_operator.filters import MAX_CURSOR, MAX_ID, Cursor, Filter, read_cursor
from surelane_operator.timeline import Step, trace_of
from surelane_service.cron import CatchUp, Cron
from surelane_service.rates import MOST_AT_ONCE, Rate, parse_rate


def digits(text: object) -> object:
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= len(str(MAX_ID))):
        raise ValueError("write an event's id as a whole number above 0")
    return text


def _parts(value: object) -> object:
    return [part for part in value.split(",") if part] if isinstance(value, str) else value


def _date_and_time(value: object) -> object:
    # Pydantic would also read a number, as seconds since 1970. The document describes text only.
    if not isinstance(value, str) or "-" not in value[1:]:
        raise ValueError("write a time as 2026-01-31T12:00:00Z")
    return value


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("write a time that is in the years 1 to 9999 in UTC") from None


def _visible_at(moment: datetime | None) -> datetime | None:
    # PostgreSQL's infinity arrives as the last moment of the year 9999.
    return None if moment is None or moment.year == 9999 else moment


Status = Literal["pending", "scheduled", "running", "completed", "failed", "cancelled", "expired"]
Ended = Literal["completed", "failed", "cancelled", "expired"]
Name = Annotated[str, StringConstraints(pattern=r"^[^\u0000-\u001f\u007f-\u009f\u2028\u2029]{1,200}$")]
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
"""PostgreSQL cannot store the null character."""
Kind = Annotated[Text, StringConstraints(min_length=1, max_length=200)]
Key = Annotated[Text, StringConstraints(min_length=1, max_length=1000)]
Moment = Annotated[AwareDatetime, BeforeValidator(_date_and_time), AfterValidator(_in_utc)]
Place = Annotated[
    Cursor, PlainValidator(read_cursor, json_schema_input_type=Annotated[str, Field(max_length=MAX_CURSOR)])
]


class Strict(BaseModel):
    """Refuse unknown names: a misspelt filter must not mean no filter."""

    model_config = ConfigDict(extra="forbid")


class EventPath(BaseModel):
    """The path of one event."""

    id: Annotated[int, Field(ge=1, le=MAX_ID), BeforeValidator(digits)]


class JobQuery(Strict):
    """The query of ``GET /v1/jobs/{id}``."""

    payload: bool = Field(
        True, description="with the payload and the result; that you looked at them is kept"
    )


class KindPath(BaseModel):
    """The path of one kind."""

    kind: Name


class WorkerPath(BaseModel):
    """The path of one worker."""

    name: Name


class CronPath(BaseModel):
    """The path of one schedule."""

    name: Name


class Which(Strict):
    """A filter of events. A field that is left out matches every event."""

    status: Sequence[Status] | None = None
    kind: list[Kind] | None = Field(None, description="exact kinds")
    key: Key | None = Field(None, description="an item key, a group key or a dedupe key")
    since: Moment | None = Field(None, description="enqueued, or ended if it has, at or after")
    until: Moment | None = Field(None, description="enqueued, or ended if it has, before")

    def filter(self) -> Filter:
        """Return the filter for :class:`Operations`."""
        return Filter(self.status, self.kind, self.key, self.since, self.until)


class JobsQuery(Which):
    """The query of ``GET /v1/jobs``."""

    status: Annotated[list[Status] | None, BeforeValidator(_parts)] = Field(
        None, description="in an address separated by commas"
    )
    kind: Annotated[list[Kind] | None, BeforeValidator(_parts)] = Field(
        None, description="exact kinds, in an address separated by commas"
    )
    limit: int = Field(20, ge=1, le=1000)
    cursor: Place | None = Field(None, description="`next` of the page before")


class SearchQuery(Strict):
    """The query of ``GET /v1/jobs/search``."""

    text: Annotated[Text, StringConstraints(min_length=1, max_length=1000)] = Field(
        description="words that people saw, each of them in the event, in any case; or a link to a message in Slack"
    )
    kind: Annotated[list[Kind] | None, BeforeValidator(_parts)] = Field(
        None, description="exact kinds, in an address separated by commas"
    )
    since: Moment | None = Field(None, description="enqueued, or ended if it has, at or after")
    limit: int = Field(20, ge=1, le=1000)

    def filter(self) -> Filter:
        """Return the filter for :class:`Operations`."""
        return Filter(kinds=self.kind, since=self.since)


class FindQuery(Strict):
    """The query of ``GET /v1/find``."""

    text: Annotated[Text, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)] = Field(
        description="a link to a message in Slack, a channel and a ts, an event's id, Slack's event_id, or a whole key"
    )


class Requeue(Which):
    """The body of a bulk requeue: the newest ended events that match."""

    status: Annotated[list[Ended], Field(min_length=1)]
    limit: int = Field(100, ge=1, le=1000)


class Orchestrate(Strict):
    """The body of ``POST /v1/orchestrate``: the goal of the plan."""

    goal: Annotated[Text, StringConstraints(min_length=1, max_length=20_000)]
    subtasks: list[Text] | None = Field(
        None,
        max_length=10_000,
        description="the plan; without it, the handler of orchestrator-plan makes one",
    )
    fails_with_children: StrictBool = Field(
        False, description="end as failed with the first subtask that does not complete"
    )
    dedupe_key: Key | None = None


class CronBody(Strict):
    """The body of ``PUT /v1/cron/{name}``."""

    kind: Kind
    schedule: Annotated[str, StringConstraints(max_length=200)] = Field(description="five cron fields")
    payload: dict[str, Any] = Field(default_factory=dict)
    time_zone: Annotated[str, StringConstraints(max_length=100)] = "UTC"
    catch_up: CatchUp = "one"
    paused: StrictBool = False
    priority: Priority = 1

    @model_validator(mode="after")
    def _readable(self) -> Self:
        Cron(self.schedule, self.time_zone)
        return self


def _readable_rate(text: str) -> str:
    if text != "none":
        parse_rate(text)
    return text


class LimitBody(Strict):
    """The body of ``PUT /v1/limits/{kind}``. A field that is left out stays as it is."""

    concurrency: Annotated[StrictInt, Field(ge=0, le=MOST_AT_ONCE)] | None = Field(
        None, description="how many run at once; 0 lifts the bound"
    )
    rate: Annotated[str, StringConstraints(max_length=100), AfterValidator(_readable_rate)] | None = Field(
        None, description="how many begin in a period, such as 60/1m; none lifts the bound"
    )
    per: Literal["kind", "workspace", "channel", "user", "given"] | None = Field(
        None, description="what has a limit of its own; given: a key that comes with each job"
    )

    @model_validator(mode="after")
    def _changes(self) -> Self:
        if self.concurrency is None and self.rate is None and self.per is None:
            raise ValueError("name concurrency, rate or per")
        return self

    def parsed_rate(self) -> Rate | None:
        """Return the rate; a count of 0 lifts it."""
        if self.rate is None:
            return None
        return Rate(0, timedelta()) if self.rate == "none" else parse_rate(self.rate)


class ListedJob(BaseModel):
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
    error: str | None = Field(description="the latest attempt's error; a list shows 1,000 characters")
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


class JobStory(ListedJob):
    """An event with all its fields and its timeline."""

    why: str = Field(description="a sentence: why it waits, or how it ended")
    payload: Any = Field(description="null where the query leaves it out")
    errors: list[Any]
    result: Any = Field(description="null where the query leaves the payload out")
    replay_of: int | None = Field(description="the event that this one runs again")
    replayed_as: list[int] = Field(description="the events that run this one again")
    timeline: list[Step]


class JobPage(BaseModel):
    """A page of events, newest first: live ones, then ended ones."""

    jobs: list[ListedJob]
    next: str | None = Field(description="the cursor of the next page; null: this is the last page")


class JobsFound(BaseModel):
    """The events that a search found, newest first: live ones, then ended ones."""

    jobs: list[ListedJob]


class Why(BaseModel):
    """The reason why an event is not running."""

    reason: str
    detail: str


class Ids(BaseModel):
    """The events that were moved back into the queue."""

    requeued: list[int]


class Cancelled(BaseModel):
    """The event's state. The handler of a ``running`` event is stopped."""

    status: Literal["cancelled", "running"]


class ReplayBody(Strict):
    """The body of a replay. Both fields may be left out."""

    from_step: Annotated[Text, StringConstraints(min_length=1, max_length=300)] | None = Field(
        None, description="keep the steps that were stored before this one; null: keep none"
    )
    payload: Any = Field(None, description="the new event's payload; null: that of the old one")


class Replayed(BaseModel):
    """The new event, and the stored steps that it keeps."""

    id: int
    key: str
    replay_of: int
    kept: list[str]


class CancelQuery(Strict):
    """Why an event is cancelled, and whether the children that it waits for are cancelled too."""

    reason: Annotated[Text, Field(max_length=1000)] | None = None
    children: bool = False


class SignalBody(Strict):
    """A value for an event that waits for it."""

    name: Name
    value: Any = None


class Sent(BaseModel):
    """The value was stored for the event's next wait of that name."""

    status: Literal["sent"]


class Started(BaseModel):
    """The job that was enqueued, or the pending job under its dedupe key."""

    id: int


class KindState(BaseModel):
    """The number of a kind's events in each state."""

    kind: str
    paused: bool
    pending: int
    scheduled: int
    running: int
    oldest_pending: datetime | None


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


class Stats(BaseModel):
    """The queue in figures."""

    kinds: list[KindState]
    workers: list[WorkerState]


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


class LimitList(BaseModel):
    """The limits of kinds."""

    limits: list[LimitState]


class CronChange(Strict):
    """The body of ``PATCH /v1/cron/{name}``."""

    paused: StrictBool


class Problem(BaseModel):
    """The reason why a request was refused."""

    error: str
