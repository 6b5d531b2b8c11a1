"""Let people submit and close the app's modals, and its legacy dialogs."""

from surelane_dev.simulator.app_answers import Submitted, settle_dialog, settle_submission
from surelane_dev.simulator.control.acts import Act, BadRequestError, attempted, interact
from surelane_dev.simulator.control.elements import open_view, viewer
from surelane_dev.simulator.control.inputs import Closing, Filling, Submission
from surelane_dev.simulator.posting.delivery import DeliveryAttempt
from surelane_dev.simulator.posting.payloads import Payloads
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.state import Entered, mistakes, state_of
from surelane_dev.simulator.views import View
from surelane_dev.simulator.workspace.dialogs import Dialog, entered
from surelane_dev.simulator.workspace.model import JSON


async def submit(act: Act[Submission]) -> JSON:
    """Submit a modal. Errors of the app, or of the client before it asks the app, are shown under the inputs."""
    simulator, view = act.simulator, _modal(act)
    state = _state(simulator, view, act.asked.values)
    if errors := mistakes(view.content["blocks"], state):
        return _refused(errors)
    workspace, _ = viewer(simulator, view)
    attempt = await interact(simulator, workspace, _payload(simulator, view, "view_submission", state))
    return _settled(attempt, settle_submission(workspace, simulator.interactions.views, view, attempt))


def _refused(errors: dict[str, str]) -> JSON:
    return {"status": None, "problem": None, "errors": errors, "message": None}


def _settled(attempt: DeliveryAttempt, done: Submitted) -> JSON:
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


async def submit_dialog(act: Act[Filling]) -> JSON:
    """Submit a dialog. Errors of the app, or of the client before it asks the app, are shown under the inputs."""
    dialog = _dialog(act)
    submission, errors = entered(dialog.content, act.asked.values)
    if errors:
        return _refused(errors)
    attempt = await interact(act.simulator, act.workspace, act.payloads.dialog(dialog, submission))
    done = settle_dialog(dialog, attempt)
    if not (done.errors or done.message):
        act.simulator.interactions.dialogs.pop(act.user.id, None)
    return _settled(attempt, done)


async def cancel_dialog(act: Act[Filling]) -> JSON:
    """Close a dialog. Notify the app if it asked for that."""
    dialog = _dialog(act)
    del act.simulator.interactions.dialogs[act.user.id]
    if not dialog.content.get("notify_on_cancel"):
        return {"told": None}
    return {"told": (await interact(act.simulator, act.workspace, act.payloads.dialog(dialog))).status}


def _dialog(act: Act[Filling]) -> Dialog:
    dialog = act.simulator.interactions.dialogs.get(act.user.id)
    if dialog is None:
        raise BadRequestError(f"{act.user.name} has no dialog open")
    return dialog
