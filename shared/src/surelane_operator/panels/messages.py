"""Find the events of a message, an id or a key; where there are none, say what may have happened to the message."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel, Field

from surelane.calls import Calls
from surelane_operator.api.models import ListedJob
from surelane_operator.console.looks import Message, group_jobs, message_jobs, parts_of, read_message
from surelane_operator.filters import LIVE, Filter
from surelane_operator.operations import Operations
from surelane_operator.reasons import outcome, sentence

RECENT = 300
"""The newest events, which say what workspaces there are."""
REPEATED_FOR = timedelta(hours=24)
"""How long Slack repeats what it could not deliver, where the app asks for it."""
TOLD = 20
"""Events of an answer, at most."""
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
    received: dict[str, int] = Field(
        description="what this process has received since it started; empty: /metrics of ingest has the counts"
    )


class FoundJob(ListedJob):
    """An event, and why it waits or how it ended."""

    why: str


class Lookup(BaseModel):
    """The events of a message, an id or a key; those of a thread in its order."""

    jobs: list[FoundJob]
    more: int = Field(description=f"events beside these {TOLD}")
    lost: Lost | None = Field(description="null: there are events, or the text is no message")


@dataclass(frozen=True, slots=True)
class Matches:
    """What a text leads to.

    Attributes:
        ids: the events, each once.
        message: the message that the text names; ``None``: it names an event or a key.
        newest: the newest events.
    """

    ids: list[int]
    message: Message | None
    newest: Sequence[Mapping[str, Any]]


async def matches_of(operations: Operations, calls: Calls, text: str) -> Matches:
    """Look up a link to a message, a channel and a ts, an event's id, or a natural key."""
    message = read_message(text)
    newest = await operations.list_jobs(Filter(), RECENT)
    if message is None:
        found = await operations.find(text)
    else:
        teams = dict.fromkeys(parts_of(job["group_key"])[0] for job in newest if job["group_key"])
        found = await message_jobs(calls, message, list(filter(None, teams)))
    return Matches(list(dict.fromkeys(found)), message, newest)


async def look_up(
    operations: Operations, calls: Calls, text: str, received: Callable[[], Mapping[str, int]]
) -> Lookup:
    """Find the events of a text, and say of each why it waits or how it ended. Group and dedupe keys count, too."""
    found = await matches_of(operations, calls, text)
    ids = found.ids
    if found.message is None:
        # A thread has the natural key of its first message.
        others = await group_jobs(calls, text, TOLD) or await operations.list_jobs(Filter(key=text), TOLD)
        ids = list(dict.fromkeys([*ids, *(job["id"] for job in others)]))
    jobs = [job for identity in ids[:TOLD] if (job := await operations.get(identity))]
    lost = None
    if found.message is not None and not ids:
        lost = lost_message(found.message, found.newest, await operations.clock(), received())
    told = [FoundJob.model_validate(job | {"why": await why(operations, job)}) for job in jobs]
    return Lookup(jobs=told, more=len(ids) - len(told), lost=lost)


async def why(operations: Operations, job: Mapping[str, Any]) -> str:
    """Say in a sentence why an event waits, or how it ended. ``job`` is an answer of :meth:`Operations.get`."""
    if job["status"] not in LIVE:
        return outcome(job)
    found = await operations.why(job["id"])
    return _JUST_ENDED if found is None else sentence(*found)


def lost_message(
    message: Message, newest: Sequence[Mapping[str, Any]], now: datetime, received: Mapping[str, int]
) -> Lost:
    """Say what may have happened to a message without an event."""
    seen = any(parts_of(job["group_key"])[1] == message.channel for job in newest if job["group_key"])
    subscribed = (
        "Events of this channel have come lately, so the app is subscribed and in the channel. Was the bot mentioned?"
        if seen
        else "None of the newest events is of this channel. Is the app in it, and subscribed to its events?"
    )
    stored = f"The newest event was stored {newest[0]['enqueued_at'].isoformat()}. " if newest else ""
    causes = [
        ("Slack did not send it.", subscribed),
        (
            "Ingest refused it.",
            "The signing secret may be wrong, or the request came late: see the counts.",
        ),
        (
            "Ingest did not take it.",
            "It ignores the app's own messages and types of requests that it does not know.",
        ),
        (
            "It did not reach ingest.",
            f"{stored}Slack's app page lists failed deliveries, and says whether it has switched the subscription off.",
        ),
        ("It was removed.", "Retention drops old history."),
    ]
    sent_at = datetime.fromtimestamp(float(message.ts), UTC)
    return Lost(
        channel=message.channel,
        ts=message.ts,
        sent_at=sent_at,
        repeated=now - sent_at < REPEATED_FOR,
        causes=[Cause(what=what, detail=detail) for what, detail in causes],
        received=dict(received),
    )
