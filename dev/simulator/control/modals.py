"""Let people submit and close the app's modals."""

from aiohttp import web

from dev.simulator.app_answers import settle_submission
from dev.simulator.control.inputs import SIMULATOR, Closing, RefusedError, Submission, body_of
from dev.simulator.control.interacting import attempted, interact, open_view
from dev.simulator.posting.payloads import view_payload
from dev.simulator.simulator import Simulator
from dev.simulator.state import NotOfferedError, mistakes, state_of
from dev.simulator.views import View
from dev.simulator.workspace.model import JSON


async def submit(request: web.Request) -> web.Response:
    """Submit a modal. Errors of the app, or of the client before it asks the app, are shown under the inputs."""
    simulator = request.app[SIMULATOR]
    filled = await body_of(request, Submission)
    view = _modal(simulator, request.match_info["view"])
    try:
        state = state_of(view.content["blocks"], filled.values, simulator.offered.of(view.id))
    except NotOfferedError as error:
        raise RefusedError(str(error)) from None
    if errors := mistakes(view.content["blocks"], state):
        return web.json_response({"status": None, "problem": None, "errors": errors, "message": None})
    attempt = await interact(simulator, _payload(simulator, view, "view_submission", state))
    done = settle_submission(simulator.workspace, simulator.interactions.views, view, attempt)
    return attempted(attempt, errors=done.errors, message=done.message)


async def close(request: web.Request) -> web.Response:
    """Close a modal, or all of them. Notify the app of each that asked for that."""
    simulator = request.app[SIMULATOR]
    asked = await body_of(request, Closing)
    views = simulator.interactions.views
    view = _modal(simulator, request.match_info["view"])
    whole = asked.all or view.content["clear_on_close"]
    closed = views.clear(view.user) if whole else [view]
    if not whole:
        views.close(view.id)
    statuses = []
    for each in closed:
        if each.content["notify_on_close"]:
            state = state_of(each.content["blocks"], asked.values if each is view else {}, lambda *_: {})
            payload = _payload(simulator, each, "view_closed", state) | {"is_cleared": bool(whole)}
            statuses.append((await interact(simulator, payload)).status)
    return web.json_response({"told": statuses})


def _payload(simulator: Simulator, view: View, kind: str, state: JSON) -> JSON:
    user = simulator.workspace.users[view.user]
    content = view.content | {"state": state}
    return view_payload(simulator.workspace, simulator.interactions, kind=kind, view=content, user=user)


def _modal(simulator: Simulator, view_id: str) -> View:
    view = open_view(simulator, view_id)
    if view.content["type"] != "modal":
        raise RefusedError("that view is no modal")
    return view


ROUTES = [
    web.post("/control/views/{view}", submit),
    web.delete("/control/views/{view}", close),
]
