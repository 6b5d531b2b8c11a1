"""One event: its whole story, why it waits, and what can be done about it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from surelane_operator.console.place import Place, place_of
from surelane_operator.console.screen import Asked, Missing, Screen, Sources, Values
from surelane_operator.reasons import outcome, sentence
from surelane_operator.timeline import Step, story_of, trace_of

MAX_ID = 2**63 - 1
LIVE = ("pending", "scheduled", "running")
MARKS = {
    "enqueued": "+",
    "claimed": "▸",
    "failed": "!",
    "step failed": "!",
    "step": "✓",
    "sleeps": "z",
    "waits": "?",
    "waited": "✓",
    "signalled": "↓",
    "replied": "↑",
    "completed": "✓",
    "cancelled": "✕",
    "expired": "✕",
    "died": "†",
    "lapsed": "†",
    "rescued": "↺",
    "requeued": "↺",
}
STATES = {
    "failed": "failed",
    "step failed": "failed",
    "died": "died",
    "lapsed": "died",
    "claimed": "claimed",
    "completed": "completed",
    "step": "completed",
    "waited": "completed",
    "waits": "waits",
    "sleeps": "waits",
    "expired": "expired",
}
"""The colours of the timeline's marks."""


@dataclass(frozen=True, slots=True)
class Told:
    """A step of the timeline as the page shows it."""

    step: Step
    mark: str
    state: str
    traceback: str | None = None
    where: str | None = None
    link: str | None = None

    @property
    def inline(self) -> bool:
        """Return whether the detail fits on the line of what happened."""
        return bool(self.step.detail) and len(self.step.detail or "") <= 24 and self.state != "failed"


def event(sources: Sources) -> Screen:
    """Make the screen."""

    async def read(asked: Asked) -> Values:
        identity = asked.path["id"]
        found = None
        if identity.isascii() and identity.isdigit() and int(identity) <= MAX_ID:
            found = await sources.operations.get(int(identity))
        if found is None:
            raise Missing(f"There is no event {identity}. Retention may have removed it.")
        place = place_of(found["payload"])
        live = found["status"] in LIVE
        why = await sources.operations.why(found["id"]) if live else None
        return {
            "job": found,
            "live": live,
            "place": place,
            "why": None if why is None else sentence(*why),
            "reason": why[0] if why else None,
            "behind": _head(why[1]) if why else None,
            "outcome": None if live else outcome(found),
            "story": list(_told(sources, found, place)),
            "forks": _forks(found["steps"]),
            "message": sources.links.to_message(place.workspace, place.channel, place.ts),
            "trace": trace_of(found),
            "trace_link": sources.links.to_trace(trace_of(found)),
        }

    return Screen("event", "/events/{id}", "Event", read, listed=False, within="events", every=2.0)


def _head(detail: str) -> int | None:
    """Return the event that comes first, which the detail of a group's reason names."""
    found = re.match(r"event (\d+) of its group", detail)
    return int(found[1]) if found else None


def _told(sources: Sources, job: Mapping[str, Any], place: Place) -> Iterator[Told]:
    errors = {_moment(error.get("at")): error for error in job["errors"]}
    posted = {
        ("step", _moment(step["finished_at"])): step["posted"] for step in job["steps"] if step.get("posted")
    } | {("replied", reply["at"]): reply for reply in job["replies"] if reply["channel"]}
    for step in story_of(job):
        what = step.what.removesuffix(" (kept)")
        message = posted.get((what, step.at))
        error = errors.get(step.at, {}) if what == "failed" else {}
        yield Told(
            step,
            MARKS.get(what, "·"),
            STATES.get(what, ""),
            traceback=error.get("traceback"),
            where=error.get("where"),
            link=sources.links.to_message(place.workspace, message["channel"], message["ts"])
            if message
            else None,
        )


def _moment(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None


def _forks(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the steps from which the event can run again."""
    return [
        step["name"] if step["nth"] in (None, 1) else f"{step['name']} ({step['nth']})"
        for step in steps
        if step["sort"] in ("step", "sleep", "wait")
    ]
