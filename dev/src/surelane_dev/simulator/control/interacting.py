"""Post an interaction to the app, and answer how that went."""

import json
from dataclasses import dataclass

from aiohttp import web

from surelane_dev.simulator.control.inputs import (
    SIMULATOR,
    BadRequestError,
    Placed,
    check_app,
    message_at,
    person_named,
    workspace_of,
)
from surelane_dev.simulator.posting.delivery import DeliveryAttempt, form_delivery
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.state import Options
from surelane_dev.simulator.views import View
from surelane_dev.simulator.workspace.blocks import find_element
from surelane_dev.simulator.workspace.model import JSON, Message, User
from surelane_dev.simulator.workspace.workspace import Workspace


@dataclass(frozen=True, slots=True)
class UsedElement:
    """An element that a person uses, and the message or view in which it is."""

    workspace: Workspace
    place: Message | View
    user: User
    blocks: list[JSON]
    block: JSON
    element: JSON
    key: str
    """The name of the place."""
    offered: Options


async def interact(simulator: Simulator, workspace: Workspace, payload: JSON) -> DeliveryAttempt:
    """Post an interaction's payload, once, for the installation of a workspace."""
    installed = payload | {"is_enterprise_install": simulator.installs.is_wide(workspace)}
    form = {"payload": json.dumps(installed)}
    delivery = form_delivery(payload["type"], payload.get("trigger_id"), form, workspace.team_id)
    return await simulator.sender.send_once(delivery)


def attempted(attempt: DeliveryAttempt, **more: object) -> web.Response:
    """Answer the result of an attempt."""
    facts = {"status": attempt.status, "problem": attempt.problem, "ms": round(attempt.seconds * 1000, 1)}
    return web.json_response(facts | more)


def used_element(request: web.Request, asked: Placed) -> UsedElement:
    """Return the element to which a request refers."""
    simulator = request.app[SIMULATOR]
    place: Message | View
    if asked.view_id:
        place = open_view(simulator, asked.view_id)
        workspace, user = viewer(simulator, place)
        blocks, key = place.content["blocks"], place.id
    else:
        here = workspace_of(request)
        place, user = message_at(here, asked), person_named(here, asked.user)
        workspace, blocks, key = here.author_of(place), place.blocks, f"{place.channel}/{place.ts}"
        check_app(simulator, workspace)
    found = find_element(blocks, asked.action_id, asked.block_id)
    if found is None:
        where = "view" if asked.view_id else "message"
        raise BadRequestError(f"the {where} has no button or input {asked.action_id}")
    return UsedElement(workspace, place, user, blocks, *found, key, simulator.offered.of(key))


def viewer(simulator: Simulator, view: View) -> tuple[Workspace, User]:
    """Return the workspace whose app opened a view, and the person who sees it."""
    workspace = simulator.installs.workspaces[view.content["team_id"]]
    found = workspace.member(view.user)
    if found is None:
        raise BadRequestError("that view's person is gone")
    return workspace, found[1]


def open_view(simulator: Simulator, view_id: str) -> View:
    """Return an open modal or a *Home* tab."""
    view = simulator.interactions.views.find(view_id)
    if view is None:
        raise BadRequestError("that modal is not open")
    return view
