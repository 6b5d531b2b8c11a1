"""Find the events of a message, an id or a key; where there are none, say what may have happened to the message."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel, Field

from surelane_operator.reads.dropped import DroppedDelivery, find_dropped
from surelane_operator.reads.events import Reads
from surelane_operator.reads.filters import LIVE, Filter, MessagePlace, parts_of, read_message
from surelane_operator.reads.timeline import ListedEvent, outcome, sentence

RECENT = 300
"""The newest events, which say what workspaces there are."""
REPEATED_FOR = timedelta(hours=24)
"""How long Slack repeats what it could not deliver, where the app asks for it."""
TOLD = 20
"""Events of an answer, at most."""
_EVENT_ID = re.compile(r"Ev[A-Z0-9]{4,30}", re.ASCII)
_JUST_ENDED = "It has just ended: read it again."


class Cause(BaseModel):
    """What may have happened to a message without an event."""

    what: str
    detail: str


class Lost(BaseModel):
    """A message without an event."""

    channel: str
    ts: str
    sent_at: datetime
    repeated: bool = Field(description="whether Slack may still repeat it")
    causes: list[Cause] = Field(description="what may have happened")


class FoundEvent(ListedEvent):
    """An event, and why it waits or how it ended."""

    why: str


class Lookup(BaseModel):
    """The events of a message, an id or a key; those of a thread in its order."""

    jobs: list[FoundEvent]
    more: int = Field(description=f"events beside these {TOLD}")
    lost: Lost | None = Field(description="null: it came, or the text is no message")
    dropped: list[DroppedDelivery] | None = Field(
        description="deliveries that came within a day and became no event; null: there are none"
    )


@dataclass(frozen=True, slots=True)
class Matches:
    """The events that a text leads to, each once. ``lost``: the text is a message of which nothing came."""

    ids: list[int]
    is_message: bool
    lost: Lost | None
    dropped: list[DroppedDelivery]

    async def events(self, reads: Reads, most: int) -> list[dict[str, Any]]:
        """Read the first ``most`` of the events."""
        return [event for identity in self.ids[:most] if (event := await reads.get(identity))]


async def matches_of(reads: Reads, text: str) -> Matches:
    """Look up a link to a message, a channel and a ts, an event's id, a natural key, or a time."""
    message = read_message(text)
    dropped = await find_dropped(reads, text, message)
    if message is None:
        found = list(dict.fromkeys(await reads.find(text)))
        if not found and _EVENT_ID.fullmatch(text):
            # A mention that is one event with its channel's message has the message as its key.
            found = [event["id"] for event in await reads.search(text, Filter(), TOLD)]
        return Matches(found, is_message=False, lost=None, dropped=dropped)
    newest = await reads.list_events(Filter(), RECENT)
    teams = dict.fromkeys(parts_of(event["group_key"])[0] for event in newest if event["group_key"])
    found = await reads.message_events(message, list(filter(None, teams)))
    lost = None if found or dropped else _lost(message, newest, await reads.clock())
    return Matches(list(dict.fromkeys(found)), is_message=True, lost=lost, dropped=dropped)


async def look_up(reads: Reads, text: str) -> Lookup:
    """Find the events of a text, and say of each why it waits or how it ended. Group and dedupe keys count, too."""
    found = await matches_of(reads, text)
    if not found.is_message:
        # A thread has the natural key of its first message.
        others = await reads.group_events(text, TOLD) or await reads.list_events(Filter(key=text), TOLD)
        found = replace(found, ids=list(dict.fromkeys([*found.ids, *(event["id"] for event in others)])))
    events = await found.events(reads, TOLD)
    told = [FoundEvent.model_validate(event | {"why": await why(reads, event)}) for event in events]
    return Lookup(jobs=told, more=len(found.ids) - len(told), lost=found.lost, dropped=found.dropped or None)


async def why(reads: Reads, event: Mapping[str, Any]) -> str:
    """Say in a sentence why an event waits, or how it ended. ``event`` is an answer of :meth:`Reads.get`."""
    if event["status"] not in LIVE:
        return outcome(event)
    found = await reads.why(event["id"])
    return _JUST_ENDED if found is None else sentence(*found)


def _lost(message: MessagePlace, newest: Sequence[Mapping[str, Any]], now: datetime) -> Lost:
    """Say what may have happened to a message without an event."""
    seen = any(parts_of(event["group_key"])[1] == message.channel for event in newest if event["group_key"])
    subscribed = (
        "Events of this channel have come lately, so the app is subscribed and in the channel. Was the bot mentioned?"
        if seen
        else "None of the newest events is of this channel. Is the app in it, and subscribed to its events?"
    )
    stored = f"The newest event was stored {newest[0]['enqueued_at'].isoformat()}. " if newest else ""
    causes = {
        "Slack did not send it.": subscribed,
        "Ingest refused it.": "The signing secret may be wrong, or the request came late:"
        " its /metrics count answers by status.",
        "Ingest did not take it, more than a day ago.": "For a day it keeps what it did not take, and why.",
        "It did not reach ingest.": f"{stored}Slack's app page lists failed deliveries,"
        " and says whether it has switched the subscription off.",
        "It was removed.": "Retention drops old history.",
    }
    told = [Cause(what=what, detail=detail) for what, detail in causes.items()]
    sent_at = datetime.fromtimestamp(float(message.ts), UTC)
    repeated = now - sent_at < REPEATED_FOR
    return Lost(channel=message.channel, ts=message.ts, sent_at=sent_at, repeated=repeated, causes=told)
