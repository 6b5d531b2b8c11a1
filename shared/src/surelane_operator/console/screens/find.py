"""Find the events of a message, an id or a key; where there are none, say what may have happened to the message."""

from urllib.parse import quote

from surelane_operator.console.screen import Asked, Missing, Moved, Screen, Sources, Values
from surelane_operator.panels.messages import lost_message, matches_of


def find(sources: Sources) -> Screen:
    """Make the screen."""
    operations, calls = sources.operations, sources.calls

    async def read(asked: Asked) -> Values:
        text = asked.word("q")
        if text is None:
            raise Missing("Type a link to a message, an event's id, or a key.")
        found = await matches_of(operations, calls, text)
        if len(found.ids) == 1:
            raise Moved(f"/console/events/{found.ids[0]}")
        if not found.ids and found.message is None:
            thread = await calls.fetchval("select id from agent.group_jobs($1, 1) limit 1", text)
            if thread is not None:
                raise Moved(f"/console/thread?key={quote(text, safe='')}")
        lost = None
        if not found.ids and found.message is not None:
            lost = lost_message(found.message, found.newest, await operations.clock(), sources.received())
        jobs = [job for identity in found.ids[:50] if (job := await operations.get(identity))]
        return {"text": text, "jobs": jobs, "lost": lost}

    return Screen("find", "/find", "Find", read, listed=False, within="events", every=5.0)
