"""Serve ``views.*``: modals, and the *Home* tab."""

from surelane_dev.simulator.interactions import TriggerState
from surelane_dev.simulator.views import DEEPEST, View
from surelane_dev.simulator.webapi.call import ApiError, Method, MethodCall, SlackState, invalid_arguments
from surelane_dev.simulator.webapi.view_content import checked, placed
from surelane_dev.simulator.workspace.model import JSON

TRIGGER_ERRORS = {
    "unknown": "invalid_trigger_id",
    "expired": "expired_trigger_id",
    "used": "exchanged_trigger_id",
}


def open_view(call: MethodCall, slack: SlackState) -> JSON:
    """Open a modal for the user of the trigger id."""
    content = _content(call, "modal")
    _check_external_id(slack, content)
    user = _user_of_trigger(call, slack)
    view = View(user, placed(slack.workspace, content))
    slack.interactions.views.open(view)
    return {"view": view.content}


def push_view(call: MethodCall, slack: SlackState) -> JSON:
    """Open a modal over those of the trigger's user."""
    content = _content(call, "modal")
    _check_external_id(slack, content)
    state, user = _trigger(slack, call)
    stack = slack.interactions.views.stack(user) if state == "valid" else []
    if state == "valid" and not stack:
        raise ApiError("not_found")
    if len(stack) >= DEEPEST:
        raise ApiError("push_limit_reached")
    view = View(
        _user_of_trigger(call, slack), placed(slack.workspace, content, below=stack[-1] if stack else None)
    )
    slack.interactions.views.push(view)
    return {"view": view.content}


def update_view(call: MethodCall, slack: SlackState) -> JSON:
    """Replace the content of an open view."""
    view_id, external_id = call.text("view_id"), call.text("external_id")
    if not (view_id or external_id):
        raise invalid_arguments("missing required field: view_id or external_id")
    shown = slack.interactions.views.find(view_id, external_id)
    if shown is None:
        raise ApiError("not_found")
    content = _content(call, str(shown.content["type"]))
    _check_external_id(slack, content, shown)
    _check_hash(call, shown)
    slack.interactions.views.replace(shown, placed(slack.workspace, content, old=shown))
    return {"view": shown.content}


def publish_view(call: MethodCall, slack: SlackState) -> JSON:
    """Show a view on a user's *Home* tab."""
    user = slack.workspace.users.get(call.text("user_id"))
    if user is None or user.is_bot:
        raise ApiError("user_not_found")
    if not slack.manifest.home_tab:
        raise ApiError("not_enabled")
    content = _content(call, "home")
    shown = slack.interactions.views.home(user.id)
    _check_external_id(slack, content, shown)
    if shown is not None:
        _check_hash(call, shown)
    view = View(user.id, placed(slack.workspace, content, old=shown))
    slack.interactions.views.publish(view)
    return {"view": view.content}


def _content(call: MethodCall, kind: str) -> JSON:
    return checked(call.mapping("view", "invalid_arguments") or {}, kind)


def _trigger(slack: SlackState, call: MethodCall) -> tuple[TriggerState, str]:
    """Return whether a trigger id is valid, and its user. One of another workspace is not known here."""
    state, user = slack.interactions.trigger(call.text("trigger_id"))
    return (state, user) if not user or slack.workspace.member(user) else ("unknown", "")


def _user_of_trigger(call: MethodCall, slack: SlackState) -> str:
    state, user = _trigger(slack, call)
    if state == "valid":
        slack.interactions.use_trigger(call.text("trigger_id"))
    else:
        raise ApiError(TRIGGER_ERRORS[state])
    return user


def _check_external_id(slack: SlackState, content: JSON, shown: View | None = None) -> None:
    external_id = content["external_id"]
    if external_id and slack.interactions.views.find("", external_id) not in (None, shown):
        raise ApiError("duplicate_external_id")


def _check_hash(call: MethodCall, shown: View) -> None:
    if call.text("hash") not in {"", shown.content["hash"]}:
        raise ApiError("hash_conflict")


METHODS = {
    "views.open": Method(open_view, ("trigger_id", "view")),
    "views.push": Method(push_view, ("trigger_id", "view")),
    "views.update": Method(update_view, ("view",)),
    "views.publish": Method(publish_view, ("user_id", "view")),
}
