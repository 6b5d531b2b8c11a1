"""The timeline of one event, from its row alone: when it came, each claim, failure and change, and how it ended."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from surelane_service.telemetry.spans import trace_id_of

_LAPSED = "its lease ran out without an outcome: the worker died or lost the database"
_DIED = "this worker's session ended, and it opened no other"
_EXHAUSTED = ("expired", "attempts_exhausted")


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happened to an event."""

    at: datetime
    what: str
    by: str | None
    detail: str | None


def story_of(job: Mapping[str, Any]) -> list[Step]:
    """Return the steps of an event, oldest first. ``job`` is an answer of :meth:`Operations.get`."""
    return sorted(_steps(job), key=lambda step: step.at)


def trace_of(job: Mapping[str, Any]) -> str:
    """Return the id of an event's trace, 32 hexadecimal digits.

    It is the trace that stored the event, or else the one that follows from the event's key.
    """
    stored = str(job.get("traceparent") or "").split("-")
    if len(stored) == 4 and len(stored[1]) == 32:
        return stored[1]
    return f"{trace_id_of(job['item_key'] or str(job['id'])):032x}"


def _steps(job: Mapping[str, Any]) -> Iterator[Step]:
    yield Step(job["enqueued_at"], "enqueued", job["enqueued_by"], None)
    # The row keeps the moments of the last 100 claims, but the number of all of them.
    first = job["claims"] - len(job["claimed"]) + 1
    for number, moment in enumerate(job["claimed"], start=first):
        worker = job["locked_by"] if number == job["claims"] else None
        yield Step(moment, "claimed", worker, f"claim {number}")
    for error in job["errors"]:
        if moment := _moment(error.get("at")):
            yield Step(moment, "failed", error.get("worker"), f"{error.get('type')}: {error.get('message')}")
    yield from _stored(job)
    yield from _replied(job)
    for change in job["changes"]:
        if died := _moment(change.get("died_at")):
            yield Step(died, "died", change.get("worker"), _DIED)
        if moment := _moment(change.get("at")):
            yield Step(moment, change["action"], change.get("by"), _detail(change))
    unsettled = job["status"] == "pending" or (job["status"], job["reason"]) == _EXHAUSTED
    if job["locked_by"] and unsettled and not _rescued(job):
        # The next claim records a lapse among the changes. No claim has followed this one.
        yield Step(job["finished_at"] or job["run_at"], "lapsed", job["locked_by"], _LAPSED)
    if job["finished_at"]:
        yield Step(job["finished_at"], job["status"], job["finished_by"], job["reason"])


def _stored(job: Mapping[str, Any]) -> Iterator[Step]:
    """Yield what a durable handler stored. A replay has steps that were stored before it."""
    for stored in job.get("steps", ()):
        for step in _durable(stored):
            yield replace(step, what=f"{step.what} (kept)") if step.at < job["enqueued_at"] else step


def _replied(job: Mapping[str, Any]) -> Iterator[Step]:
    """Yield the replies that Slack took, except those that a step tells of."""
    told = {step["posted"]["ts"] for step in job.get("steps", ()) if step.get("posted")}
    for reply in job.get("replies", ()):
        if reply["ts"] not in told:
            place = f" in {reply['channel']}" if reply["channel"] else ""
            yield Step(reply["at"], "replied", None, f"message {reply['ts']}{place}")


def _durable(step: Mapping[str, Any]) -> Iterator[Step]:
    """Yield what happened to a step, a sleep, a wait or a signal of a durable handler."""
    sort, nth = step["sort"], step.get("nth")
    name = step["name"] if nth in (None, 1) else f"{step['name']} ({nth})"
    began, ended, due = (_moment(step.get(field)) for field in ("started_at", "finished_at", "due_at"))
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
        if moment := _moment(error.get("at")):
            detail = f"{name}, attempt {error.get('attempt')}: {error.get('type')}: {error.get('message')}"
            yield Step(moment, "step failed", None, detail)
    if sort == "step":
        if ended is not None:
            took = (ended - began).total_seconds()
            yield Step(ended, "step", None, f"{name}: {took:.3f} s, {attempt}, began {began.isoformat()}")
        return
    if ended is None or ended > began:
        until = "" if due is None else f" until {due.isoformat()}"
        yield Step(began, "sleeps" if sort == "sleep" else "waits", None, f"{name}{until}, {attempt}")
    if ended is not None:
        yield Step(ended, "waited", None, name)


def _rescued(job: Mapping[str, Any]) -> bool:
    """Return whether a rescue has ended the event's last claim."""
    last = job["changes"][-1] if job["changes"] else {}
    return last.get("action") == "rescued" and last.get("claim") == job["claims"]


def _moment(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text))
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
        case "replay of" | "replayed as":
            return _replay(change)
        case "fanned out":
            return (
                f"{change.get('children')} children; event {change.get('id')} continues when they have ended"
            )
        case "continues":
            return f"event {change.get('id')}, which fanned out"
        case "dropped":
            return f"{change.get('count')} changes up to here are not kept"
        case _:
            return _difference(change)


def _rescue(change: Mapping[str, Any]) -> str:
    ended = f"claim {change.get('claim')} of {change.get('worker')} was ended"
    silent = change.get("silent_for")
    return ended if silent is None else f"{ended}: no heartbeat came for {silent:g} s"


def _replay(change: Mapping[str, Any]) -> str:
    """Name the other event of a replay."""
    key = f" ({change['key']})" if change.get("key") else ""
    said = [f"event {change['id']}{key}"]
    if change.get("from_step"):
        said.append(f"from step {change['from_step']}, steps kept: {change['kept']}")
    if change.get("payload"):
        said.append("with another payload")
    return ", ".join(said)


def _difference(change: Mapping[str, Any]) -> str:
    before, after = change.get("from") or {}, change.get("to") or {}
    names = [*before, *(name for name in after if name not in before)]
    return ", ".join(f"{name}: {before.get(name, '-')} → {after.get(name, '-')}" for name in names)
