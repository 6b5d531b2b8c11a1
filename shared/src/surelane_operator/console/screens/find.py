"""Find the events of a message, an id or a key; where there are none, say what may have happened to the message."""

from datetime import UTC, datetime, timedelta
from urllib.parse import quote

from surelane_operator.console.looks import Message, message_jobs, read_message
from surelane_operator.console.screen import Asked, Missing, Moved, Screen, Sources, Values
from surelane_operator.console.screens.thread import parts_of
from surelane_operator.filters import Filter

RECENT = 300
"""The newest events, which say what workspaces there are."""


def find(sources: Sources) -> Screen:
    """Make the screen."""

    async def read(asked: Asked) -> Values:
        text = asked.word("q")
        if text is None:
            raise Missing("Type a link to a message, an event's id, or a key.")
        message = read_message(text)
        newest = await sources.operations.list_jobs(Filter(), RECENT)
        if message is None:
            found = await sources.operations.find(text)
            thread = await sources.calls.fetchval("select id from agent.group_jobs($1, 1) limit 1", text)
            if not found and thread is not None:
                raise Moved(f"/console/thread?key={quote(text, safe='')}")
        else:
            teams = dict.fromkeys(parts_of(job["group_key"])[0] for job in newest if job["group_key"])
            found = await message_jobs(sources.calls, message, list(filter(None, teams)))
        distinct = list(dict.fromkeys(found))
        if len(distinct) == 1:
            raise Moved(f"/console/events/{distinct[0]}")
        return {
            "text": text,
            "jobs": [job for identity in distinct[:50] if (job := await sources.operations.get(identity))],
            "message": message,
            "sent_at": None if message is None else datetime.fromtimestamp(float(message.ts), UTC),
            "channel_seen": message is not None and _seen(message, [job["group_key"] for job in newest]),
            "newest": newest[0] if newest else None,
            "received": sources.received(),
            "now": await sources.operations.clock(),
            "retried_for": timedelta(hours=24),
        }

    return Screen("find", "/find", "Find", read, listed=False, within="events", every=5.0)


def _seen(message: Message, keys: list[str | None]) -> bool:
    """Return whether events of the message's channel have come lately."""
    return any(parts_of(key)[1] == message.channel for key in keys if key)
