"""The queue as operators see it: an overview, kinds and their limits, workers, schedules, open questions."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

from pydantic import BaseModel, Field

from surelane.calls import Calls, Row
from surelane.codec import at_step
from surelane.jobs import Priority
from surelane.text import typed
from surelane_operator.reads.events import Reads
from surelane_operator.reads.filters import Cursor, Ended, Filter, Status, keyset
from surelane_operator.reads.timeline import ListedEvent, sentence
from surelane_service.cron import CatchUpText, Cron, Overlap

MINUTES = 5
"""The figures are those of the last minutes."""
WEEK = timedelta(days=7)
UNANSWERED = ("failed", "expired")
NEWEST = 10
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
    waiting = await reads.longest_waiting(NEWEST)
    return Overview.model_validate(
        {
            "at": now,
            "waiting": [{**row, "why": sentence(row["reason"], row["detail"])} for row in waiting],
            "unanswered": await reads.list_events(Filter(UNANSWERED, since=now - WEEK), NEWEST),
            "pace": await reads.recent_figures(MINUTES),
        }
    )


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


class KindSummary(BaseModel):
    """A kind of events."""

    kind: str
    paused: bool
    paused_at: datetime | None
    paused_by: str | None
    max_attempts: int | None = Field(description="as its workers said last; null: none has")
    ordered: bool = Field(description="commands and interactions: whether they keep their thread's order")
    handled_at: datetime | None = Field(description="when a worker that handled it last retired")
    failed: int = Field(description="events that failed in the last day, up to 1,000")
    counts: Counts | None = Field(
        description="null: not measured yet, or with more than 500 kinds counted among the others"
    )
    limit: KindLimit | None
    workers: list[str] = Field(description="the live workers that handle it")


class KindPage(BaseModel):
    """A page of kinds, by name."""

    kinds: list[KindSummary]
    next: str | None = Field(description="pass it as `after` for the next page; null: this is the last page")
    measured: float | None = Field(description="seconds since the counts were measured; null: not yet")


async def read_kinds(reads: Reads, after: str | None, limit: int = PAGE) -> KindPage:
    """Return a page of kinds. Their counts are measured once for all callers, every 15 seconds at most."""
    rows = await reads.calls.fetch("select * from agent.list_kinds(null, $1, $2)", after, limit)
    kinds, age = await _whole(reads, rows)
    return KindPage(kinds=kinds, next=kinds[-1].kind if len(kinds) == limit else None, measured=age)


async def read_kind(reads: Reads, kind: str) -> KindSummary | None:
    """Return one kind; ``None``: no event of it was ever stored, and no worker handles it."""
    rows = await reads.calls.fetch("select * from agent.list_kinds($1, null, 1)", kind)
    kinds, _ = await _whole(reads, rows)
    return kinds[0] if kinds else None


async def _whole(reads: Reads, rows: Sequence[Row]) -> tuple[list[KindSummary], float | None]:
    """Add the counts, limits and workers to the rows, and say how old the counts are."""
    names = [row["kind"] for row in rows]
    counts, age = await _counts(reads)
    workers: dict[str, list[str]] = defaultdict(list)
    for worker in await reads.workers():
        for kind in worker["kinds"] if worker["alive"] else ():
            workers[kind].append(worker["name"])
    limits = await _limits(reads, names)
    kinds: list[KindSummary] = []
    for row in rows:
        kind = row["kind"]
        more = {"counts": counts.get(kind), "limit": limits.get(kind), "workers": workers[kind]}
        kinds.append(KindSummary.model_validate(dict(row) | more))
    return kinds, age


async def _counts(reads: Reads) -> tuple[Mapping[str, Counts], float | None]:
    if (figures := await reads.measured()) is None:
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


EACH = 10
"""Running events that are shown of a worker in the list."""
ALL = 200
"""Running events that are shown of one worker."""
TOLD = 20
"""Of these, tags and progress are read."""

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
    tags: dict[str, str] = Field(description="of the first 20 events of the answer; else none")
    progress: str | None = Field(description="what the handler said last of its progress")


class WorkerState(BaseModel):
    """A worker as it last announced itself, and whether it lives.

    ``lost``: its session is gone, and it has some seconds to open another. ``died``: it opened none, and its claims
    were ended. ``silent``: it has announced nothing for 90 seconds.
    """

    name: str
    kinds: list[str]
    version: str
    alive: bool
    state: Literal["alive", "drained", "lost", "died", "silent"]
    started_at: datetime
    seen_at: datetime
    died_at: datetime | None


class WorkerDetail(WorkerState):
    """A worker, and what it runs."""

    clock_offset: float | None = Field(description="seconds that its clock is ahead of the database's")
    max_attempts: int | None
    slots: int | None = Field(description="handlers that it runs at once; null: it has not said")
    interactive_slots: int | None = Field(description="those for commands and interactions, besides")
    running: int = Field(description="events that it runs now")
    runs: list[Running] = Field(description="some of these events, those that began first")


class WorkerList(BaseModel):
    """The workers of the last day, by name."""

    workers: list[WorkerDetail]


async def read_workers(reads: Reads, name: str | None = None, each: int = EACH) -> WorkerList:
    """Return the workers, or the one of that name."""
    known = [row for row in await reads.workers() if name in (None, row["name"])]
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    rows = await reads.calls.rows("list_running", name, each)
    told = await reads.tags_and_progress([row["id"] for row in rows[:TOLD]])
    for row in rows:
        runs[row["worker"]].append(dict(row) | told.get(row["id"], {"tags": {}, "progress": None}))
    rows = await reads.calls.fetch("select name, slots, interactive_slots from agent.worker")
    said = {row["name"]: row for row in rows}
    silent = {"slots": None, "interactive_slots": None}
    return WorkerList(
        workers=[_worker(row | dict(said.get(row["name"], silent)), runs[row["name"]]) for row in known]
    )


def _worker(row: dict[str, Any], runs: list[dict[str, Any]]) -> WorkerDetail:
    offset = row["clock_offset"]
    seconds = None if offset is None else offset.total_seconds()
    more = {"clock_offset": seconds, "running": runs[0]["running"] if runs else 0, "runs": runs}
    return WorkerDetail.model_validate(row | more)


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


class NamedSchedule(BaseModel):
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
    problem: str | None = Field(None, description="why it did not fire the last time")
    following: list[datetime] = Field(description="its next five firings; none while it is paused")
    last_run: Firing | None = Field(
        description="the newest job that it stored, while it is live or in history"
    )


class ScheduleList(BaseModel):
    """The named schedules, by name."""

    schedules: list[NamedSchedule]


async def read_schedules(reads: Reads) -> ScheduleList:
    """Return all named schedules, their payloads decrypted."""
    rows = await reads.list_cron()
    now = await reads.clock()
    runs = await _last_runs(reads.calls, rows)
    schedules: list[NamedSchedule] = []
    for row in rows:
        more = {"jitter": row["jitter"].total_seconds(), "following": _following(row, now)}
        if not isinstance(row["payload"], dict):  # somebody wrote it by hand
            more["payload"] = {}
        schedules.append(NamedSchedule.model_validate(row | more | {"last_run": runs.get(row["name"])}))
    return ScheduleList(schedules=schedules)


def _following(row: Mapping[str, Any], now: datetime) -> list[datetime]:
    """Return the next firings. One that is overdue comes first: a worker is about to fire it."""
    cron = _readable(row)
    if row["paused"] or cron is None:
        return []
    try:
        times = [row["next_at"].astimezone(UTC)]
        while len(times) < NEXT:
            times.append(cron.next_firing(max(times[-1], now)))
    except (ArithmeticError, ValueError, TypeError):  # next due at infinity
        return []
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
    """Yield the times for which the last job may be: before the last firing, or before the next one in rounds."""
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


MOST_USAGE = 500


class ModelUsage(BaseModel):
    """What one model used for one workspace on one day (UTC)."""

    day: date
    workspace: str = Field(description="empty: work without a workspace")
    model: str
    requests: int
    input_tokens: int
    output_tokens: int
    cost: float = Field(description="by the prices of `SURELANE_MODEL_BUDGET`; 0 without a price")


class UsageList(BaseModel):
    """What models used in the last 30 days, the newest day first, then the highest cost."""

    usage: list[ModelUsage] = Field(description=f"{MOST_USAGE} at most")


async def list_usage(reads: Reads) -> UsageList:
    """Return what models used, summed over people."""
    rows = await reads.calls.fetch(
        "select day, owner_id as workspace, model, sum(requests) as requests, sum(cost) as cost"
        ", sum(input_tokens) as input_tokens, sum(output_tokens) as output_tokens"
        " from agent.model_usage where day > ((select agent.clock()) at time zone 'utc')::date - 30"
        " group by day, owner_id, model order by day desc, cost desc, owner_id, model limit $1",
        MOST_USAGE,
    )
    return UsageList(usage=[ModelUsage.model_validate(dict(row)) for row in rows])


LONGEST_TEXT = 200


class Question(BaseModel):
    """An open question."""

    id: int = Field(description="the event that waits")
    kind: str
    item_key: str | None
    group_key: str | None
    question: str = Field(description="its name: send a signal of that name to answer it")
    text: str | None = Field(description="its first 200 characters")
    choices: list[str] | None = Field(description="null: people write an answer")
    by: list[str] | None = Field(description="the users who may answer; null: anybody, or a function decides")
    judged: bool = Field(description="whether a function decides who may answer")
    channel: str | None
    ts: str | None = Field(description="the message's timestamp")
    thread_ts: str | None
    asked_at: datetime
    until: datetime | None


class QuestionPage(BaseModel):
    """A page of open questions, newest first."""

    questions: list[Question]
    next: str | None = Field(description="the cursor of the next page; null: this is the last page")


async def list_questions(reads: Reads, after: Cursor | None = None, limit: int = 50) -> QuestionPage:
    """Return a page of open questions."""
    rows = await reads.calls.rows("list_questions", *keyset(after), limit)
    found: list[Question] = []
    for row in rows:
        posted = json.loads(row["posted"]) if row["posted"] else {}
        posted = await reads.codec.show(posted, at_step(row["id"], f"{row['question']} asked", 1))
        found.append(Question.model_validate(dict(row) | _posted(posted)))
    following = Cursor(found[-1].id, found[-1].asked_at).text() if len(found) == limit else None
    return QuestionPage(questions=found, next=following)


def _posted(posted: object) -> dict[str, Any]:
    """Return what is shown of a stored question."""
    given = posted if isinstance(posted, dict) else {}
    shown = {name: given.get(name) for name in ("choices", "by", "channel", "ts", "thread_ts")}
    said = given.get("text")
    text = typed(said)[:LONGEST_TEXT] if isinstance(said, str) else None
    return shown | {"text": text, "judged": bool(given.get("judged"))}
