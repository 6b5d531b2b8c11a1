"""Let people submit and close the app's modals."""

from surelane_dev.simulator.app_answers import settle_submission
from surelane_dev.simulator.control.acts import Act, BadRequestError, attempted, interact
from surelane_dev.simulator.control.elements import open_view, viewer
from surelane_dev.simulator.control.inputs import Closing, Submission
from surelane_dev.simulator.posting.payloads import Payloads
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.state import Entered, mistakes, state_of
from surelane_dev.simulator.views import View
from surelane_dev.simulator.workspace.model import JSON


async def submit(act: Act[Submission]) -> JSON:
    """Submit a modal. Errors of the app, or of the client before it asks the app, are shown under the inputs."""
    simulator, view = act.simulator, _modal(act)
    state = _state(simulator, view, act.asked.values)
    if errors := mistakes(view.content["blocks"], state):
        return {"status": None, "problem": None, "errors": errors, "message": None}
    workspace, _ = viewer(simulator, view)
    attempt = await interact(simulator, workspace, _payload(simulator, view, "view_submission", state))
    done = settle_submission(workspace, simulator.interactions.views, view, attempt)
    return attempted(attempt, errors=done.errors, message=done.message)


async def close(act: Act[Closing]) -> JSON:
    """Close a modal, or all of them. Notify the app of each that asked for that."""
    simulator, view = act.simulator, _modal(act)
    views = simulator.interactions.views
    workspace, _ = viewer(simulator, view)
    whole = bool(act.asked.all or view.content["clear_on_close"])
    closed = views.stack(view.user)[::-1] if whole else [view]
    payloads = []
    for each in closed:
        if each.content["notify_on_close"]:
            state = _state(simulator, each, act.asked.values if each is view else {})
            payloads.append(_payload(simulator, each, "view_closed", state) | {"is_cleared": whole})
    for each in closed:
        views.close(each.id)
    return {"told": [(await interact(simulator, workspace, payload)).status for payload in payloads]}


def _state(simulator: Simulator, view: View, entered: Entered) -> JSON:
    return state_of(view.content["blocks"], entered, simulator.offered.of(view.id))


def _payload(simulator: Simulator, view: View, kind: str, state: JSON) -> JSON:
    workspace, user = viewer(simulator, view)
    return Payloads(workspace, simulator.interactions, user).view(kind, view.content | {"state": state})


def _modal(act: Act[Submission] | Act[Closing]) -> View:
    view = open_view(act.simulator, act.request.match_info["view"])
    if view.content["type"] != "modal":
        raise BadRequestError("that view is no modal")
    return view
