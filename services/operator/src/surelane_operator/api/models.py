"""Models of what the operator's API reads and answers. Its OpenAPI document is made from them."""

import re
from dataclasses import replace
from datetime import UTC, datetime
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
from surelane_operator.reads import filters
from surelane_operator.reads.queue import LimitState, WorkerState
from surelane_operator.reads.timeline import ListedEvent
from surelane_service.common.durations import MOST_AT_ONCE, Rate, parse_duration, read_limit_rate
from surelane_service.cron import CatchUpText, Cron, Overlap


def digits(text: object) -> object:
    most = len(str(filters.MAX_ID))
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= most):
        raise ValueError("write an event's id as a whole number above 0")
    return text


def _parts(value: object) -> object:
    # An empty part is kept, and refused: it must not mean no filter.
    return value.split(",") if isinstance(value, str) else value


def _kinds(value: object) -> object:
    parts = _parts(value)
    if not isinstance(parts, list):
        return parts
    return [filters.kind_of(part) if isinstance(part, str) else part for part in parts]


def _key(value: object) -> object:
    return filters.natural_key(value) if isinstance(value, str) else value


def _tags(value: object) -> object:
    tags = filters.split_tags(value) if isinstance(value, str) else value
    if isinstance(tags, list) and all(isinstance(tag, str) for tag in tags):
        filters.read_tags(tags)
    return tags


def _seconds(value: object) -> object:
    if not isinstance(value, str):
        return value
    seconds = parse_duration(value).total_seconds()
    return int(seconds) if seconds.is_integer() else seconds


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


Name = Annotated[str, StringConstraints(pattern=r"^[^\u0000-\u001f\u007f-\u009f\u2028\u2029]{1,200}$")]
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
"""PostgreSQL cannot store the null character."""
Kind = Annotated[Text, StringConstraints(min_length=1, max_length=200)]
Tags = list[Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,40}[:=][^\x00\n]{1,200}$")]]
Key = Annotated[Text, StringConstraints(min_length=1, max_length=1000)]
Moment = Annotated[AwareDatetime, BeforeValidator(_date_and_time), AfterValidator(_in_utc)]
_CursorText = Annotated[str, Field(max_length=filters.MAX_CURSOR)]
Place = Annotated[filters.Cursor, PlainValidator(filters.read_cursor, json_schema_input_type=_CursorText)]


class Strict(BaseModel):
    """Refuse unknown names: a misspelt filter must not mean no filter."""

    model_config = ConfigDict(extra="forbid")


class EventPath(BaseModel):
    id: Annotated[int, Field(ge=1, le=filters.MAX_ID), BeforeValidator(digits)]


class EventQuery(Strict):
    payload: bool = Field(
        True,
        description="with the payload, the result and the texts of errors; that you looked at them is kept",
    )


class KindPath(BaseModel):
    kind: Name = Field(description="a kind, such as slack.app_mention")


class NamePath(BaseModel):
    name: Name = Field(description="the name of a worker or a schedule")


class Newest(Strict):
    """The filter of a search. A field that is left out matches every event."""

    kind: Annotated[list[Kind] | None, BeforeValidator(_kinds)] = Field(
        None, description="only this kind, or a command such as /deploy"
    )
    since: Moment | None = Field(
        None, description="only events that were enqueued, or ended, at or after this"
    )
    tag: Annotated[Tags | None, BeforeValidator(_tags)] = Field(
        None, description="only events with this tag, such as customer=acme"
    )

    def filter(self) -> filters.Filter:
        return filters.Filter(kinds=self.kind, since=self.since, tags=filters.read_tags(self.tag))


class Which(Newest):
    """A filter of events. A field that is left out matches every event."""

    status: Annotated[list[filters.Status] | None, BeforeValidator(_parts)] = Field(
        None, description="only events of this status"
    )
    key: Annotated[Key, BeforeValidator(_key)] | None = Field(
        None, description="only events with this item key, group key or dedupe key"
    )
    until: Moment | None = Field(None, description="only events that were enqueued, or ended, before this")

    def filter(self) -> filters.Filter:
        return replace(super().filter(), statuses=self.status, key=self.key, until=self.until)


class EventsQuery(Which):
    limit: int = Field(20, ge=1, le=1000, description="show this many at most")
    cursor: Place | None = Field(None, description="`next` of the page before")
    errors: bool = Field(
        True, description="with the messages of errors, not only their types; that you looked is kept"
    )


class SearchQuery(Newest):
    text: Annotated[Text, StringConstraints(min_length=1, max_length=1000)] = Field(
        description="words that people saw, or a link to a message in Slack"
    )
    limit: int = Field(20, ge=1, le=1000, description="show this many at most")


class FindQuery(Strict):
    text: Annotated[Text, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)] = Field(
        description="a link to a message in Slack, a channel and a ts, an event's id, Slack's event_id, or a whole key"
    )


class KindsQuery(Strict):
    after: Kind | None = Field(None, description="`next` of the page before")
    limit: int = Field(100, ge=1, le=1000)


class PageQuery(Strict):
    limit: int = Field(20, ge=1, le=200)
    cursor: Place | None = Field(None, description="`next` of the page before")


class WorkflowQuery(Strict):
    after: int = Field(0, ge=0, le=2**63 - 1, description="begin with the child after this id")


class Orchestrate(Strict):
    """The body of ``POST /v1/orchestrate``: the goal of the plan."""

    goal: Annotated[Text, StringConstraints(min_length=1, max_length=20_000)] = Field(
        description="the goal of the plan"
    )
    subtasks: list[Text] | None = Field(
        None,
        max_length=10_000,
        description="a part of the plan; without any, the handler of orchestrator-plan makes them",
    )
    fails_with_children: StrictBool = Field(
        False, description="end as failed with the first subtask that does not complete"
    )
    dedupe_key: Key | None = Field(None, description="add no job while another one with this key is pending")


class CronBody(Strict):
    """The body of ``PUT /v1/cron/{name}``."""

    kind: Kind = Field(description="the kind of the jobs that it enqueues")
    schedule: Annotated[str, StringConstraints(max_length=200)] = Field(
        description="five cron fields in quotes: '*/5 * * * *'"
    )
    payload: dict[str, Any] = Field({}, description="the jobs' payload, a JSON object")
    time_zone: Annotated[str, StringConstraints(max_length=100)] = Field(
        "UTC", description="the time zone of the fields, such as Europe/Berlin"
    )
    catch_up: CatchUpText = Field(
        "one", description="missed times to fire: none, one (the last), a number of last ones or all"
    )
    paused: StrictBool = Field(False, description="fire nothing until it is set again and not paused")
    priority: Priority = Field(1, description="0 runs first, 3 last")
    overlap: Overlap = Field(
        "allow", description="what a firing does while an earlier job of the schedule is live"
    )
    jitter: Annotated[
        StrictInt, Field(ge=0, le=86400), BeforeValidator(_seconds, json_schema_input_type=int | str)
    ] = Field(0, description="how long after its time a firing comes at most: seconds, or such as 5m")

    @model_validator(mode="after")
    def _readable(self) -> Self:
        Cron(self.schedule, self.time_zone)
        return self


def _at_once(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value != "none" and not re.fullmatch("[1-9][0-9]{0,5}", value):
        raise ValueError("write a number above 0, or none")
    return 0 if value == "none" else int(value)


def _readable_rate(text: str) -> str:
    read_limit_rate(text)
    return text


class LimitBody(Strict):
    """The body of ``PUT /v1/limits/{kind}``. A field that is left out stays as it is.

    A rate of none lifts its bound, as a concurrency of none or 0 does.
    """

    concurrency: (
        Annotated[
            StrictInt,
            Field(ge=0, le=MOST_AT_ONCE),
            BeforeValidator(_at_once, json_schema_input_type=int | str),
        ]
        | None
    ) = Field(None, description="how many run at once, or none")
    rate: Annotated[str, StringConstraints(max_length=100), AfterValidator(_readable_rate)] | None = Field(
        None, description="how many begin in a period, such as 60/1m, or none"
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
        return None if self.rate is None else read_limit_rate(self.rate)


class EventPage(BaseModel):
    """A page of events, newest first: live ones, then ended ones."""

    jobs: list[ListedEvent]
    next: str | None = Field(description="the cursor of the next page; null: this is the last page")


class EventsFound(BaseModel):
    """The events that a search found, newest first: live ones, then ended ones."""

    jobs: list[ListedEvent]


class Why(BaseModel):
    """The reason why an event is not running."""

    reason: str
    detail: str


class Cancelled(BaseModel):
    """The event's state. The handler of a ``running`` event is stopped."""

    status: Literal["cancelled", "running"]


class RerunBody(Strict):
    """How an ended event runs again. Without a field the same event does; with one a new event."""

    from_step: Annotated[Text, StringConstraints(min_length=1, max_length=300)] | None = Field(
        None, description="a new event keeps the steps that were stored before this one"
    )
    payload: Any = Field(None, description="a new event has this payload")


class Rerun(BaseModel):
    """The event that runs."""

    id: int
    rerun_of: int | None = Field(description="the event that it runs again; null: it is that event")
    key: str | None = Field(description="a new event's natural key")
    kept: list[str] = Field(description="the stored steps that a new event keeps")


class CancelQuery(Strict):
    """Why an event is cancelled, and whether the children that it waits for are cancelled too."""

    reason: Annotated[Text, Field(max_length=1000)] | None = None
    children: bool = False


class SignalBody(Strict):
    """A value for an event that waits for it."""

    name: Name = Field(description="the name that the event's handler waits for")
    value: Any = Field(None, description="the value as JSON")


class SignalSent(BaseModel):
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


class Stats(BaseModel):
    """The queue in figures."""

    kinds: list[KindState]
    workers: list[WorkerState]


class LimitList(BaseModel):
    """The limits of kinds."""

    limits: list[LimitState]


class NextFiring(BaseModel):
    """When a schedule fires next, unless it is paused."""

    next_at: datetime
    paused: bool


class CronChange(Strict):
    """The body of ``PATCH /v1/cron/{name}``."""

    paused: StrictBool


class Problem(BaseModel):
    """The reason why a request was refused."""

    error: str
