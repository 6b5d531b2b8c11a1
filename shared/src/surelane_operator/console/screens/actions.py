"""The kept actions: who did what, when, and what came of it."""

from surelane_operator.console.screen import Asked, Screen, Sources, Values

LIST = 50
_LAST = 2**63


def actions(sources: Sources) -> Screen:
    """Make the screen."""

    async def read(asked: Asked) -> Values:
        text, target = asked.word("before") or "", asked.word("target")
        before = int(text) if text.isascii() and text.isdigit() and int(text) < _LAST else None
        found = await sources.operations.actions.list_actions(LIST, before=before, target=target)
        return {
            "actions": found,
            "next": found[-1]["id"] if len(found) == LIST else None,
            "first": before is None,
            "target": target,
            "address": address,
        }

    return Screen("actions", "/actions", "Actions", read)


def address(target: str) -> str | None:
    """Return the path of the screen that shows an action's target; ``None``: none does."""
    sort, _, name = target.partition(" ")
    return (
        {"event": "events", "kind": "kinds", "schedule": "schedules", "worker": "workers"}.get(sort)
        if name
        else None
    )
