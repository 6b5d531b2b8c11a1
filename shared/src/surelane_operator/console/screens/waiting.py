"""Waiting for people: the questions that handlers asked with ``ctx.ask``, and that have no answer yet."""

from surelane_operator.console.cursors import begin, cursor_after
from surelane_operator.console.screen import Asked, Screen, Sources, Values
from surelane_operator.panels.questions import list_questions

LIST = 50


def waiting(sources: Sources) -> Screen:
    """Make the screen."""

    async def read(asked: Asked) -> Values:
        cursor = begin(asked)
        found = await list_questions(sources.calls, cursor, LIST, sources.operations.sealing)
        last = found[-1] if len(found) == LIST else None
        following = cursor_after({"id": last.id, "finished_at": last.asked_at}) if last else None
        return {
            "questions": [(each, sources.links.to_message(None, each.channel, each.ts)) for each in found],
            "next": following,
            "first": cursor is None,
        }

    return Screen("waiting", "/waiting", "Waiting for people", read)
