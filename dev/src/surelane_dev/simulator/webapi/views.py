"""Serve ``views.*``: modals, and the *Home* tab."""

from surelane_dev.simulator.interactions import TriggerState
from surelane_dev.simulator.views import DEEPEST, View
from surelane_dev.simulator.webapi.call import ApiError, MethodCall, invalid_arguments
from surelane_dev.simulator.webapi.view_content import checked, placed
from surelane_dev.simulator.workspace.model import JSON

TRIGGER_ERRORS = {"unknown": "invalid", "expired": "expired", "used": "exchanged"}


def open_view(call: MethodCall) -> JSON:
    """Open a modal for the user of the trigger id."""
    content = _content(call, "modal")
    _check_external_id(call, content)
    user = _user_of_trigger(call)
    view = View(user, placed(call.workspace, content))
    call.slack.interactions.views.open(view)
    return {"view": view.content}


def push_view(call: MethodCall) -> JSON:
    """Open a modal over those of the trigger's user."""
    content = _content(call, "modal")
    _check_external_id(call, content)
    state, user = _trigger(call)
    stack = call.slack.interactions.views.stack(user) if state == "valid" else []
    if state == "valid" and not stack:
        raise ApiError("not_found")
    if len(stack) >= DEEPEST:
        raise ApiError("push_limit_reached")
    view = View(_user_of_trigger(call), placed(call.workspace, content, below=stack[-1] if stack else None))
    call.slack.interactions.views.push(view)
    return {"view": view.content}


def update_view(call: MethodCall) -> JSON:
    view_id, external_id = call.text("view_id"), call.text("external_id")
    if not (view_id or external_id):
        raise invalid_arguments("missing required field: view_id or external_id")
    shown = call.slack.interactions.views.find(view_id, external_id)
    if shown is None:
        raise ApiError("not_found")
    content = _content(call, str(shown.content["type"]))
    _check_external_id(call, content, shown)
    _check_hash(call, shown)
    call.slack.interactions.views.replace(shown, placed(call.workspace, content, old=shown))
    return {"view": shown.content}


def publish_view(call: MethodCall) -> JSON:
    """Show a view on a user's *Home* tab."""
    user = call.workspace.users.get(call.text("user_id"))
    if user is None or user.is_bot:
        raise ApiError("user_not_found")
    if not call.slack.manifest.home_tab:
        raise ApiError("not_enabled")
    content = _content(call, "home")
    shown = call.slack.interactions.views.home(user.id)
    _check_external_id(call, content, shown)
    if shown is not None:
        _check_hash(call, shown)
    view = View(user.id, placed(call.workspace, content, old=shown))
    call.slack.interactions.views.publish(view)
    return {"view": view.content}


def _content(call: MethodCall, kind: str) -> JSON:
    return checked(call.mapping("view", "invalid_arguments") or {}, kind)


def _trigger(call: MethodCall) -> tuple[TriggerState, str]:
    """Return whether a trigger id is valid, and its user. One of another workspace is not known here."""
    state, user = call.slack.interactions.trigger(call.text("trigger_id"))
    return (state, user) if not user or call.workspace.member(user) else ("unknown", "")


def _user_of_trigger(call: MethodCall) -> str:
    state, user = _trigger(call)
    if state == "valid":
        call.slack.interactions.use_trigger(call.text("trigger_id"))
    else:
        raise ApiError(f"{TRIGGER_ERRORS[state]}_trigger_id")
    return user


def _check_external_id(call: MethodCall, content: JSON, shown: View | None = None) -> None:
    external_id = content["external_id"]
    if external_id and call.slack.interactions.views.find("", external_id) not in (None, shown):
        raise ApiError("duplicate_external_id")


def _check_hash(call: MethodCall, shown: View) -> None:
    if call.text("hash") not in {"", shown.content["hash"]}:
        raise ApiError("hash_conflict")
