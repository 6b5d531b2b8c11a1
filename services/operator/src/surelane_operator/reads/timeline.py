"""An event as lists show it, its timeline, and one sentence that says why it waits or how it ended."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from surelane.jobs import Priority
from surelane.trace_context import trace_id_of
from surelane_operator.reads.filters import Status

_LAPSED = "its lease ran out without an outcome: the worker died or lost the database"
_DIED = "this worker's session ended, and it opened no other"
_AGAIN = {"requeued": "run again", "replay of": "runs again", "replayed as": "run again as"}
"""What people read for the words of the database."""
_EXHAUSTED = ("expired", "attempts_exhausted")
SENTENCES = {
    "running": "A worker handles it now: {detail}.",
    "paused": "It waits because its kind is paused: {detail}. Resume the kind, and a worker claims it.",
    "waits_for_children": "It is a continuation, and waits for its children: {detail}.",
    "awaits_answer": "It waits for an answer from outside, {detail}.",
    "suspended": "Its handler is suspended: it {detail}.",
    "debounced": "It {detail}, so that quick messages are handled together.",
    "retrying": "An attempt failed: {detail}.",
    "future": "Its time has not come: it is {detail}.",
    "exhausted": "Its attempts are used up: {detail}.",
    "group_busy": "It waits behind another event of its thread: {detail}. One worker at a time handles a thread.",
    "group_waits": "It waits behind another event of its thread: {detail}.",
    "no_worker": "No worker takes it: {detail}. Start a worker that handles the kind.",
    "limited": "It waits for its kind's limit: {detail}.",
    "refused": "Its row refuses to be claimed: {detail}. A worker tries again each minute: see what was added to"
    " agent.event, or whether the row is damaged.",
    "arriving": "It is held: workspace {detail} moves here. Finish the move, or move it back.",
    "due": "Nothing holds it back: it is {detail}.",
}
"""What ``Reads.why`` answers, as a sentence for the person on call."""
REASONS = {
    "attempts_exhausted": "all its attempts were used",
    "too_old": "it waited for a worker for so long that an answer would have come too late",
    "deadline_passed": "its deadline passed",
}
"""The names that sweeps write as the reason of an end, in words."""


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happened to an event."""

    at: datetime
    what: str
    by: str | None
    detail: str | None


def story_of(event: Mapping[str, Any]) -> list[Step]:
    """Return the steps of an event, oldest first. ``event`` is an answer of :meth:`Reads.get`."""
    return sorted(_steps(event), key=lambda step: step.at)


def trace_of(event: Mapping[str, Any]) -> str:
    """Return the trace, 32 hexadecimal digits, that stored the event, or else the one that follows from its key."""
    stored = str(event.get("traceparent") or "").split("-")
    if len(stored) == 4 and len(stored[1]) == 32 and stored[3] != "00":
        return stored[1]
    return trace_id_of(event["item_key"] or str(event["id"]))


def step_label(step: Mapping[str, Any]) -> str:
    """Return the name of a stored step as people write it: the second of a name is ``name (2)``."""
    nth = step.get("nth")
    return str(step["name"]) if nth in (None, 1) else f"{step['name']} ({nth})"


def error_text(error: Mapping[str, Any]) -> str:
    """Return the type of an error, and its text where the record has it."""
    return ": ".join(str(error[name]) for name in ("type", "message") if error.get(name))


def key_of(event: dict[str, Any]) -> str:
    """Return the key under which people know an event: its own, or else its group's or its dedupe key."""
    return event["item_key"] or event["dedupe_key"] or event["group_key"] or ""


def took_by(event: dict[str, Any]) -> str:
    """Return how long the last attempt of an ended event took."""
    if event["finished_at"] is None or not event["attempts"] or event["run_at"] > event["finished_at"]:
        return ""
    return f"{(event['finished_at'] - event['run_at']).total_seconds():.2f} s"


def why_of(event: dict[str, Any]) -> str:
    """Return why an event ended as it did, or why it is tried again."""
    if event["status"] == "completed":
        return ""
    return ": ".join(part for part in (event["reason"], event["error"]) if part)


def _steps(event: Mapping[str, Any]) -> Iterator[Step]:
    yield Step(event["enqueued_at"], "enqueued", event["enqueued_by"], None)
    # The row keeps the moments of the last 100 claims, but the number of all of them.
    first = event["claims"] - len(event["claimed"]) + 1
    for number, moment in enumerate(event["claimed"], start=first):
        worker = event["locked_by"] if number == event["claims"] else None
        yield Step(moment, "claimed", worker, f"claim {number}")
    for error in event["errors"]:
        if moment := moment_of(error.get("at")):
            yield Step(moment, "failed", error.get("worker"), error_text(error))
    yield from _stored(event)
    yield from _replied(event)
    for change in event["changes"]:
        if died := moment_of(change.get("died_at")):
            yield Step(died, "died", change.get("worker"), _DIED)
        if moment := moment_of(change.get("at")):
            what = _AGAIN.get(change["action"], change["action"])
            yield Step(moment, what, change.get("by"), _detail(change))
    unsettled = event["status"] == "pending" or (event["status"], event["reason"]) == _EXHAUSTED
    if event["locked_by"] and unsettled and not _rescued(event):
        # The next claim records a lapse among the changes. No claim has followed this one.
        yield Step(event["finished_at"] or event["run_at"], "lapsed", event["locked_by"], _LAPSED)
    if event["finished_at"]:
        yield Step(event["finished_at"], event["status"], event["finished_by"], event["reason"])


def _stored(event: Mapping[str, Any]) -> Iterator[Step]:
    """Yield what a durable handler stored. An event that runs another one again has older steps."""
    for stored in event.get("steps", ()):
        for step in _durable(stored):
            yield replace(step, what=f"{step.what} (kept)") if step.at < event["enqueued_at"] else step


def _replied(event: Mapping[str, Any]) -> Iterator[Step]:
    """Yield the replies that Slack took, unless a step tells of them."""
    told = {step["posted"]["ts"] for step in event.get("steps", ()) if step.get("posted")}
    for reply in event.get("replies", ()):
        if reply["ts"] not in told:
            place = f" in {reply['channel']}" if reply["channel"] else ""
            yield Step(reply["at"], "replied", None, f"message {reply['ts']}{place}")


def _durable(step: Mapping[str, Any]) -> Iterator[Step]:
    """Yield what happened to a step, a sleep, a wait or a signal of a durable handler."""
    sort, name = step["sort"], step_label(step)
    began, ended, due = (moment_of(step.get(field)) for field in ("started_at", "finished_at", "due_at"))
    if began is None:
        return
    if sort == "signal":
        yield Step(began, "signalled", step["by"], step["name"])
        return
    if sort == "coalesced":
        yield Step(began, "coalesced", None, f"with {', '.join(map(str, step['events']))}")
        return
    attempt = f"attempt {step['attempt']}"
    for error in step["errors"]:
        if moment := moment_of(error.get("at")):
            detail = f"{name}, attempt {error.get('attempt')}: {error_text(error)}"
            yield Step(moment, "step failed", None, detail)
    if sort == "step":
        if ended is not None:
            took = (ended - began).total_seconds()
            what = "step failed for good" if step.get("failed") else "step"
            yield Step(ended, what, None, f"{name}: {took:.3f} s, {attempt}, began {began.isoformat()}")
        return
    if ended is None or ended > began:
        until = "" if due is None else f" until {due.isoformat()}"
        yield Step(began, "sleeps" if sort == "sleep" else "waits", None, f"{name}{until}, {attempt}")
    if ended is not None:
        yield Step(ended, "waited", None, name)


def _rescued(event: Mapping[str, Any]) -> bool:
    """Return whether a rescue has ended the event's last claim."""
    last = event["changes"][-1] if event["changes"] else {}
    return last.get("action") == "rescued" and last.get("claim") == event["claims"]


def moment_of(text: object) -> datetime | None:
    """Return a time that JSON holds; ``None``: it holds none."""
    try:
        moment = datetime.fromisoformat(str(text))
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    except ValueError:
        return None


def _detail(change: Mapping[str, Any]) -> str:
    match change["action"]:
        case "lapsed":
            return _LAPSED
        case "rescued":
            return _rescue(change)
        case "cancelling":
            return str(change.get("reason") or "its handler is stopped")
        case "replay of" | "replayed as" | "continuation of" | "continued as":
            return _rerun(change)
        case "fanned out":
            children = f"{change.get('children')} children"
            return f"{children}; event {change.get('id')} continues when they have ended"
        case "continues":
            return f"event {change.get('id')}, which fanned out"
        case "child of":
            return f"event {change.get('id')}, whose handler awaits it"
        case "dropped":
            return f"{change.get('count')} changes up to here are not kept"
        case _:
            return _difference(change)


def _rescue(change: Mapping[str, Any]) -> str:
    ended = f"claim {change.get('claim')} of {change.get('worker')} was ended"
    silent = change.get("silent_for")
    return ended if silent is None else f"{ended}: no heartbeat came for {silent:g} s"


def _rerun(change: Mapping[str, Any]) -> str:
    """Name the new run; on the new run, the original."""
    key = f" ({change['key']})" if change.get("key") else ""
    said = [f"event {change['id']}{key}"]
    if change.get("from_step"):
        said.append(f"from step {change['from_step']}, steps kept: {change['kept']}")
    if change.get("payload"):
        said.append("with another payload")
    return ", ".join(said)


def _difference(change: Mapping[str, Any]) -> str:
    before, after = (value if isinstance(value := change.get(name), dict) else {} for name in ("from", "to"))
    names = [*before, *(name for name in after if name not in before)]
    return ", ".join(f"{name}: {before.get(name, '-')} → {after.get(name, '-')}" for name in names)


def sentence(reason: str, detail: str) -> str:
    """Say why a live event is not done."""
    return SENTENCES.get(reason, "{detail}.").format(detail=detail.rstrip("."))


def outcome(event: Mapping[str, Any]) -> str:
    said = f": {in_words(event['reason'])}" if event["reason"] else ""
    last = event["errors"][-1] if event["errors"] else {}
    match event["status"]:
        case "completed":
            done = f"It completed on attempt {event['attempts']}." if event["attempts"] else "It completed."
            return f"{done} Before that it failed {_often(event['errors'])}" if last else done
        case "failed":
            error = f" {error_text(last)}" if last and last.get("message", last["type"]) not in said else ""
            return f"It failed after {_times(event['attempts'])}{said}.{error}"
        case "expired":
            return f"It expired after {_times(event['attempts'])}{said}."
        case _:
            return f"It was cancelled{said}."


def _often(errors: Sequence[Mapping[str, Any]]) -> str:
    last = error_text(errors[-1])
    return f"once: {last}" if len(errors) == 1 else f"{len(errors)} times, last with {last}"


def _times(attempts: int) -> str:
    return "no attempt" if not attempts else f"{attempts} attempt{'s' if attempts > 1 else ''}"


def in_words(reason: str | None) -> str:
    """Say why an event ended; some reasons are names that sweeps write."""
    return REASONS.get(reason or "", reason or "")


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
