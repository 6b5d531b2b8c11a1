"""Find the events of a message, an id or a key; where there are none, say what may have happened to the message."""

from urllib.parse import quote

from surelane_operator.console.screen import Asked, Missing, Moved, Screen, Sources, Values
from surelane_operator.panels.messages import lost_message, place_of


def find(sources: Sources) -> Screen:
    """Make the screen."""
    operations, calls = sources.operations, sources.calls

    async def read(asked: Asked) -> Values:
        text = asked.word("q")
        if text is None:
            raise Missing("Type a link to a message, an event's id, or a key.")
        place = await place_of(operations, calls, text)
        if len(place.ids) == 1:
            raise Moved(f"/console/events/{place.ids[0]}")
        if not place.ids and place.message is None:
            thread = await calls.fetchval("select id from agent.group_jobs($1, 1) limit 1", text)
            if thread is not None:
                raise Moved(f"/console/thread?key={quote(text, safe='')}")
        lost = None
        if not place.ids and place.message is not None:
            lost = lost_message(place.message, place.newest, await operations.clock(), sources.received())
        jobs = [job for identity in place.ids[:50] if (job := await operations.get(identity))]
        return {"text": text, "jobs": jobs, "lost": lost}

    return Screen("find", "/find", "Find", read, listed=False, within="events", every=5.0)
