"""Check a view's content as Slack does, and complete it with ids and defaults."""

import json
from secrets import token_hex

from surelane_dev.simulator.posting.events import new_id
from surelane_dev.simulator.views import View
from surelane_dev.simulator.webapi.call import ApiError, invalid_arguments
from surelane_dev.simulator.workspace.blocks import identified, view_problems
from surelane_dev.simulator.workspace.model import JSON
from surelane_dev.simulator.workspace.workspace import Workspace

LARGEST = 250_000
"""Most bytes of a view as JSON."""
DEFAULTS: JSON = {
    **dict.fromkeys(("private_metadata", "callback_id", "external_id"), ""),
    **dict.fromkeys(("clear_on_close", "notify_on_close"), False),
    **dict.fromkeys(("close", "submit")),
}


def checked(view: JSON, kind: str) -> JSON:
    """Return the content of a ``modal`` or a ``home`` with ids for its blocks and elements, or raise ApiError."""
    if len(json.dumps(view).encode()) > LARGEST:
        raise ApiError("view_too_large")
    if problems := list(view_problems(view, kind)):
        raise invalid_arguments(*problems)
    return DEFAULTS | view | {"blocks": identified(view["blocks"], kind)}


def placed(
    workspace: Workspace, content: JSON, *, below: View | None = None, old: View | None = None
) -> JSON:
    """Return checked content as Slack sends it: with its place, its app and a new hash.

    ``below``: the modal over which it is pushed. ``old``: the view that it replaces.
    """
    view_id = old.id if old else new_id("V")
    place = old or below
    previous = old.content["previous_view_id"] if old else below.id if below else None
    root = place.content["root_view_id"] if place else view_id
    view: JSON = {"id": view_id, "previous_view_id": previous, "root_view_id": root, "state": {"values": {}}}
    view |= dict.fromkeys(("team_id", "app_installed_team_id"), workspace.team_id)
    view |= {"app_id": workspace.app_id, "bot_id": workspace.bot_id}
    return content | view | {"hash": f"{workspace.next_ts()}.{token_hex(4)}"}
