"""One event: its whole story, why it waits, and what can be done about it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from surelane.slack import Place, place_of
from surelane_operator.console.screen import Asked, Missing, Sources, Values
from surelane_operator.reads.filters import LIVE, MAX_ID
from surelane_operator.reads.timeline import (
    Step,
    moment_of,
    outcome,
    sentence,
    step_label,
    story_of,
    trace_of,
)

MARKS = {
    "enqueued": ("+", ""),
    "claimed": ("▸", "claimed"),
    "failed": ("!", "failed"),
    "step failed": ("!", "failed"),
    "step failed for good": ("!", "failed"),
    "step": ("✓", "completed"),
    "sleeps": ("z", "waits"),
    "waits": ("?", "waits"),
    "waited": ("✓", "completed"),
    "signalled": ("↓", ""),
    "replied": ("↑", ""),
    "completed": ("✓", "completed"),
    "cancelled": ("✕", ""),
    "expired": ("✕", "expired"),
    "died": ("†", "died"),
    "lapsed": ("†", "died"),
    "rescued": ("↺", ""),
    "run again": ("↺", ""),
}
"""The timeline's marks and their colours."""


@dataclass(frozen=True, slots=True)
class Told:
    """A step of the timeline as the page shows it."""

    step: Step
    mark: str
    state: str
    where: str | None = None
    link: str | None = None

    @property
    def inline(self) -> bool:
        """Return whether the detail fits on the line of what happened."""
        return bool(self.step.detail) and len(self.step.detail or "") <= 24 and self.state != "failed"


async def event(sources: Sources, asked: Asked) -> Values:
    """Read one event."""
    identity = asked.path["id"]
    found = None
    if identity.isascii() and identity.isdigit() and int(identity) <= MAX_ID:
        found = await sources.reads.get(int(identity))
    if found is None:
        raise Missing(f"There is no event {identity}. Retention may have removed it.")
    place = place_of(found["payload"])
    live = found["status"] in LIVE
    why = await sources.reads.why(found["id"]) if live else None
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
        "message": sources.links.to_message(place.workspace, place.channel, place.message_ts),
        "trace": trace_of(found),
        "trace_link": sources.links.to_trace(trace_of(found)),
    }


def _head(detail: str) -> int | None:
    """Return the event that comes first, which the detail of a group's reason names."""
    found = re.match(r"event (\d+) of its group", detail)
    return int(found[1]) if found else None


def _told(sources: Sources, event: Mapping[str, Any], place: Place) -> Iterator[Told]:
    errors = {moment_of(error.get("at")): error for error in event["errors"]}
    posted = {("replied", reply["at"]): reply for reply in event["replies"]}
    for step in event["steps"]:
        if step.get("posted"):
            posted["step", moment_of(step["finished_at"])] = step["posted"]
    for told in story_of(event):
        what = told.what.removesuffix(" (kept)")
        message = posted.get((what, told.at), {"channel": None, "ts": None})
        error = errors.get(told.at, {}) if what == "failed" else {}
        link = sources.links.to_message(place.workspace, message["channel"], message["ts"])
        yield Told(told, *MARKS.get(what, ("·", "")), where=error.get("where"), link=link)


def _forks(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the steps from which the event can run again."""
    return [step_label(step) for step in steps if step["sort"] in ("step", "sleep", "wait")]
