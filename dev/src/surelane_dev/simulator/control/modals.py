"""Let people submit and close the app's modals."""

from aiohttp import web

from surelane_dev.simulator.app_answers import settle_submission
from surelane_dev.simulator.control.inputs import SIMULATOR, BadRequestError, Closing, Submission, body_of
from surelane_dev.simulator.control.interacting import attempted, interact, open_view, viewer
from surelane_dev.simulator.posting.payloads import view_payload
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.state import Entered, mistakes, state_of
from surelane_dev.simulator.views import View
from surelane_dev.simulator.workspace.model import JSON


async def submit(request: web.Request) -> web.Response:
    """Submit a modal. Errors of the app, or of the client before it asks the app, are shown under the inputs."""
    simulator = request.app[SIMULATOR]
    filled = await body_of(request, Submission)
    view = _modal(simulator, request.match_info["view"])
    state = _state(simulator, view, filled.values)
    if errors := mistakes(view.content["blocks"], state):
        return web.json_response({"status": None, "problem": None, "errors": errors, "message": None})
    workspace, _ = viewer(simulator, view)
    payload = _payload(simulator, view, "view_submission", state)
    attempt = await interact(simulator, workspace, payload)
    done = settle_submission(workspace, simulator.interactions.views, view, attempt)
    return attempted(attempt, errors=done.errors, message=done.message)


async def close(request: web.Request) -> web.Response:
    """Close a modal, or all of them. Notify the app of each that asked for that."""
    simulator = request.app[SIMULATOR]
    asked = await body_of(request, Closing)
    views = simulator.interactions.views
    view = _modal(simulator, request.match_info["view"])
    workspace, _ = viewer(simulator, view)
    whole = asked.all or view.content["clear_on_close"]
    closed = views.stack(view.user)[::-1] if whole else [view]
    payloads = [
        _payload(
            simulator, each, "view_closed", _state(simulator, each, asked.values if each is view else {})
        )
        | {"is_cleared": bool(whole)}
        for each in closed
        if each.content["notify_on_close"]
    ]
    for each in closed:
        views.close(each.id)
    attempts = [await interact(simulator, workspace, payload) for payload in payloads]
    return web.json_response({"told": [attempt.status for attempt in attempts]})


def _state(simulator: Simulator, view: View, entered: Entered) -> JSON:
    return state_of(view.content["blocks"], entered, simulator.offered.of(view.id))


def _payload(simulator: Simulator, view: View, kind: str, state: JSON) -> JSON:
    workspace, user = viewer(simulator, view)
    content = view.content | {"state": state}
    return view_payload(workspace, simulator.interactions, kind=kind, view=content, user=user)


def _modal(simulator: Simulator, view_id: str) -> View:
    view = open_view(simulator, view_id)
    if view.content["type"] != "modal":
        raise BadRequestError("that view is no modal")
    return view


ROUTES = [web.post("/control/views/{view}", submit), web.delete("/control/views/{view}", close)]
