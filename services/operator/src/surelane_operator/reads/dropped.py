"""Find deliveries that came to ingest and became no event, and say in a sentence why."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from pydantic import BaseModel, Field

from surelane_operator.reads.events import Reads
from surelane_operator.reads.filters import MessagePlace
from surelane_service.subscriptions import TYPES

AROUND = timedelta(minutes=1)
"""How far from a time that a person gives a delivery may have come."""
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?", re.ASCII)
_TS = re.compile(r"\d{10}\.\d{6}", re.ASCII)
_REASONS = {
    "type": f"Neither the manifest nor {TYPES} of ingest names {{name}}.",
    "own": "The app itself did it, and SURELANE_OWN_EVENTS is off.",
    "bot": "No person wrote it, or it does not mean the bot, and SURELANE_BOT_MESSAGES is off.",
    "hidden": "Slack hides it from people.",
    "unchanged": "The change was of neither text nor files.",
    "loop": "No person wrote it, and its thread had SURELANE_LOOP_LIMIT such messages within a minute.",
    "rate_limited": "Slack itself dropped events: the workspace had more than 30,000 an hour.",
    "duplicate": "Its message was stored before, from another delivery: look up the message.",
    "no_handler": "No worker that lives has a handler for {name}: the person was told that it failed.",
    "full": "Too many events waited for the database. Slack tries again.",
    "unavailable": "The database did not answer in time. Slack tries again.",
    "blocked": "Another transaction blocked it. Slack tries again.",
    "refused": "The database refused it. Slack tries again.",
    "unstorable": "PostgreSQL cannot hold it.",
    "no_key": "No data key could be had to encrypt it. Slack tries again.",
}


class DroppedDelivery(BaseModel):
    """A delivery that became no event. The text of a message is not kept, nor who wrote it."""

    at: datetime = Field(description="when it came")
    key: str | None
    kind: str
    reason: str
    workspace: str | None
    channel: str | None
    ts: str | None = Field(description="of the message that it is about")
    why: str = Field(description="the reason as a sentence")


async def find_dropped(reads: Reads, text: str, message: MessagePlace | None) -> list[DroppedDelivery]:
    """Find what was dropped in the last day, newest first: of a message, by a key or a ts, or around a time.

    Times are such as ``2026-11-28 15:04``, in this process's zone where they name none.
    """
    which: tuple[object, ...] = (text,)
    if message is not None:
        which = None, message.channel, message.ts
    elif _TS.fullmatch(text.strip()):
        which = None, None, text.strip()
    elif (around := _around(text)) is not None:
        which = None, None, None, *around
    found = await reads.calls.rows("find_dropped", *which)
    return [DroppedDelivery.model_validate({**row, "why": _sentence(row)}) for row in map(dict, found)]


def _around(text: str) -> tuple[datetime, datetime] | None:
    if not _TIME.fullmatch(text.strip()):
        return None
    try:
        moment = datetime.fromisoformat(text.strip()).astimezone(UTC)
        return moment - AROUND, moment + AROUND
    except (ValueError, OverflowError):
        return None


def _sentence(row: Mapping[str, str]) -> str:
    reason, name = row["reason"], row["kind"].removeprefix("slack.")
    if reason.startswith("subtype "):
        return f"Messages of the subtype {reason[8:]} are not taken."
    told = _REASONS.get(reason)
    return told.format(name=name) if told else f"It was refused: {reason}."
