"""Let people submit and cancel the app's dialogs."""

from aiohttp import web

from surelane_dev.simulator.app_answers import settle_dialog
from surelane_dev.simulator.control.inputs import (
    SIMULATOR,
    BadRequestError,
    Filling,
    body_of,
    person_named,
    workspace_with_app,
)
from surelane_dev.simulator.control.interacting import attempted, interact
from surelane_dev.simulator.posting.payloads import dialog_payload
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.workspace.dialogs import Dialog, entered
from surelane_dev.simulator.workspace.model import User


async def submit(request: web.Request) -> web.Response:
    """Submit a dialog. Errors of the app, or of the client before it asks the app, are shown under the inputs."""
    simulator, workspace = request.app[SIMULATOR], workspace_with_app(request)
    filled = await body_of(request, Filling)
    user = person_named(workspace, filled.user)
    dialog = _open(simulator, user)
    submission, errors = entered(dialog.content, filled.values)
    if errors:
        return web.json_response({"status": None, "problem": None, "errors": errors, "message": None})
    payload = dialog_payload(
        workspace, simulator.interactions, dialog=dialog, user=user, submission=submission
    )
    attempt = await interact(simulator, workspace, payload)
    done = settle_dialog(dialog, attempt)
    if not (done.errors or done.message):
        simulator.interactions.dialogs.pop(user.id, None)
    return attempted(attempt, errors=done.errors, message=done.message)


async def cancel(request: web.Request) -> web.Response:
    """Close a dialog. Notify the app if it asked for that."""
    simulator, workspace = request.app[SIMULATOR], workspace_with_app(request)
    user = person_named(workspace, (await body_of(request, Filling)).user)
    dialog = _open(simulator, user)
    del simulator.interactions.dialogs[user.id]
    if not dialog.content.get("notify_on_cancel"):
        return web.json_response({"told": None})
    payload = dialog_payload(workspace, simulator.interactions, dialog=dialog, user=user)
    return web.json_response({"told": (await interact(simulator, workspace, payload)).status})


def _open(simulator: Simulator, user: User) -> Dialog:
    dialog = simulator.interactions.dialogs.get(user.id)
    if dialog is None:
        raise BadRequestError(f"{user.name} has no dialog open")
    return dialog


ROUTES = [web.post("/control/dialogs", submit), web.delete("/control/dialogs", cancel)]
