"""Post an interaction to the app, and answer how that went."""

import json
from dataclasses import dataclass

from aiohttp import web

from surelane_dev.simulator.control.inputs import Placed, RefusedError, message_at, person_named
from surelane_dev.simulator.posting.delivery import Attempt, form_delivery
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.state import Options
from surelane_dev.simulator.views import View
from surelane_dev.simulator.workspace.blocks import find_element
from surelane_dev.simulator.workspace.model import JSON, Message, User


@dataclass(frozen=True, slots=True)
class Used:
    """An element that a person uses, and the message or view in which it is."""

    place: Message | View
    user: User
    blocks: list[JSON]
    block: JSON
    element: JSON
    key: str
    """The name of the place."""
    offered: Options


async def interact(simulator: Simulator, payload: JSON) -> Attempt:
    """Post an interaction's payload, once."""
    delivery = form_delivery(payload["type"], payload.get("trigger_id"), {"payload": json.dumps(payload)})
    return await simulator.sender.send_once(delivery)


def attempted(attempt: Attempt, **more: object) -> web.Response:
    """Answer the result of an attempt."""
    facts = {"status": attempt.status, "problem": attempt.problem, "ms": round(attempt.seconds * 1000, 1)}
    return web.json_response(facts | more)


def used_element(simulator: Simulator, asked: Placed) -> Used:
    """Return the element to which a request refers."""
    place: Message | View
    if asked.view_id:
        place = open_view(simulator, asked.view_id)
        user, blocks, key = simulator.workspace.users[place.user], place.content["blocks"], place.id
    else:
        place, user = message_at(simulator, asked), person_named(simulator, asked.user)
        blocks, key = place.blocks, f"{place.channel}/{place.ts}"
    found = find_element(blocks, asked.action_id, asked.block_id)
    if found is None:
        where = "view" if asked.view_id else "message"
        raise RefusedError(f"the {where} has no button or input {asked.action_id}")
    return Used(place, user, blocks, *found, key, simulator.offered.of(key))


def open_view(simulator: Simulator, view_id: str) -> View:
    """Return an open modal or a *Home* tab."""
    view = simulator.interactions.views.find(view_id)
    if view is None:
        raise RefusedError("that modal is not open")
    return view
