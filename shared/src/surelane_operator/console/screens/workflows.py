"""Workflows: the tree of the events that a fan-out stored, with their states."""

from surelane_operator.console.cursors import begin, cursor_after
from surelane_operator.console.screen import Asked, Missing, Screen, Sources, Values
from surelane_operator.panels.workflows import PAGE, is_partial, list_workflows, read_workflow

LIST = 30
_LAST = 2**63


def workflows(sources: Sources) -> Screen:
    """Make the screen of all workflows."""

    async def read(asked: Asked) -> Values:
        cursor = begin(asked)
        found = await list_workflows(sources.calls, cursor, LIST)
        last = found[-1] if len(found) == LIST else None
        following = cursor_after({"id": last.id, "finished_at": last.finished_at}) if last else None
        return {"workflows": found, "next": following, "first": cursor is None}

    return Screen("workflows", "/workflows", "Workflows", read)


def workflow(sources: Sources) -> Screen:
    """Make the screen of one workflow, seen from any of its events."""

    async def read(asked: Asked) -> Values:
        given, after = asked.path["id"], asked.word("after") or "0"
        known = all(text.isascii() and text.isdigit() and int(text) < _LAST for text in (given, after))
        found = await read_workflow(sources.calls, int(given), int(after)) if known else None
        if found is None:
            raise Missing(f"There is no event {given[:40]}.")
        return {
            "workflow": found,
            "asked": int(given),
            "after": int(after),
            "page": PAGE,
            "is_partial": is_partial,
        }

    return Screen("workflow", "/workflows/{id}", "Workflow", read, listed=False, within="workflows")
