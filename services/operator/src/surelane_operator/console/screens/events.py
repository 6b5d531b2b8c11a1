"""Events: filters, keyset pages, changes to all that match, a thread's events, and one event with its whole story."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from pydantic import ValidationError

from surelane.slack import Place, place_of
from surelane_operator.api.bulk import BulkFilter
from surelane_operator.console.charts import waterfall
from surelane_operator.console.screen import Missing, Moved, ScreenAddress, Sources, Values, number
from surelane_operator.reads import filters, timeline
from surelane_operator.reads.lookup import matches_of
from surelane_service.history import COLUMNS

PAGE = 50
OF_A_THREAD = 200
_TIMES = "Write times as 2026-01-31 12:00."
_WRONG = {
    "since": _TIMES,
    "until": _TIMES,
    "status": f"A state is one of {', '.join(filters.STATUSES)}.",
    "tag": "Write tags as customer:acme, separated by commas.",
}
"""What is wrong with a field of the filter."""


async def events(sources: Sources, asked: ScreenAddress) -> Values:
    """Read a page of the events that match a filter."""
    given = {name: value for name in BulkFilter.model_fields if (value := asked.word(name))}
    wanted, wrong = _read_filter(given)
    which = wanted.filter()
    after = asked.cursor("after")
    found = await sources.reads.find_events(which, PAGE, after) if not wrong else None
    address = {**given, "after": found.next.text()} if found and found.next else None
    return {
        "given": given,
        "wrong": wrong,
        "statuses": filters.STATUSES,
        "kinds": await sources.reads.kinds(),
        "jobs": found.events if found else [],
        "looked": found.looked if found and which.narrows else None,
        "next": None if address is None else f"/console/events?{urlencode(address)}",
        "first": None if after is None else f"/console/events?{urlencode(given)}",
        "matching": wanted.model_dump(mode="json", exclude_none=True),
        "narrowed": which.narrows,
    }


async def find(sources: Sources, asked: ScreenAddress) -> Values:
    """Find the events of a message, an id or a key; without one, say what may have happened to the message."""
    text = asked.word("q")
    if text is None:
        raise Missing("Type a link to a message, an event's id, or a key.")
    found = await matches_of(sources.reads, text)
    if len(found.ids) == 1:
        raise Moved(f"/console/events/{found.ids[0]}")
    if not found.ids and not found.is_message and await sources.reads.group_events(text, 1):
        raise Moved(f"/console/thread?key={quote(text, safe='')}")
    jobs = await found.events(sources.reads, PAGE)
    return {"text": text, "jobs": jobs, "lost": found.lost, "dropped": found.dropped}


async def thread(sources: Sources, asked: ScreenAddress) -> Values:
    """Read everything of one group, such as a Slack thread, in the order in which it happened."""
    key = asked.word("key")
    if key is None:
        raise Missing("Open a thread from one of its events.")
    workspace, channel, ts = filters.parts_of(key)
    return {
        "key": key,
        "jobs": await sources.reads.group_events(key, OF_A_THREAD),
        "channel": channel,
        "ts": ts,
        "message": sources.links.to_message(workspace, channel, ts),
        "most": OF_A_THREAD,
    }


def _read_filter(given: Mapping[str, str]) -> tuple[BulkFilter, str | None]:
    """Read the filter of an address, and say what is wrong with it. Times without a zone are in UTC."""
    times = {name: _in_utc(given[name]) for name in ("since", "until") if name in given}
    try:
        return BulkFilter.model_validate({**given, **times}), None
    except ValidationError as error:
        wrong = error.errors()[0]
        return BulkFilter.model_validate({}), _WRONG.get(str(wrong["loc"][0]), wrong["msg"])


def _in_utc(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()


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

    step: timeline.Step
    mark: str
    state: str
    where: str | None = None
    link: str | None = None

    @property
    def inline(self) -> bool:
        """Return whether the detail fits on the line of what happened."""
        return bool(self.step.detail) and len(self.step.detail or "") <= 24 and self.state != "failed"


async def event(sources: Sources, asked: ScreenAddress) -> Values:
    identity = number(asked.path["id"])
    found = None if identity is None else await sources.reads.get(identity)
    if found is None:
        raise Missing(f"There is no event {asked.path['id']}. Retention may have removed it.")
    place = place_of(found["payload"])
    live = found["status"] in filters.LIVE
    why = await sources.reads.why(found["id"]) if live else None
    return {
        "job": found,
        "live": live,
        "place": place,
        "why": None if why is None else timeline.sentence(*why),
        "reason": why[0] if why else None,
        "behind": _head(why[1]) if why else None,
        "outcome": None if live else timeline.outcome(found),
        "facts": [
            (each, found[each.name]) for each in COLUMNS if each.label and found[each.name] is not None
        ],
        "story": list(_told(sources, found, place)),
        "bars": waterfall(found),
        # The steps from which the event can run again.
        "forks": [
            timeline.step_label(each) for each in found["steps"] if each["sort"] in ("step", "sleep", "wait")
        ],
        "message": sources.links.to_message(place.workspace, place.channel, place.message_ts),
        "trace": timeline.trace_of(found),
        "trace_link": sources.links.to_trace(timeline.trace_of(found)),
    }


def _head(detail: str) -> int | None:
    """Return the event that comes first, which the detail of a group's reason names."""
    found = re.match(r"event (\d+) of its group", detail)
    return int(found[1]) if found else None


def _told(sources: Sources, event: Mapping[str, Any], place: Place) -> Iterator[Told]:
    errors = {timeline.moment_of(error.get("at")): error for error in event["errors"]}
    posted = {("replied", reply["at"]): reply for reply in event["replies"]}
    for step in event["steps"]:
        if step.get("posted"):
            posted["step", timeline.moment_of(step["finished_at"])] = step["posted"]
    for told in timeline.story_of(event):
        what = told.what.removesuffix(" (kept)")
        message = posted.get((what, told.at), {"channel": None, "ts": None})
        error = errors.get(told.at, {}) if what == "failed" else {}
        link = sources.links.to_message(place.workspace, message["channel"], message["ts"])
        yield Told(told, *MARKS.get(what, ("·", "")), where=error.get("where"), link=link)
