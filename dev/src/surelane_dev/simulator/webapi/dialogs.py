"""Serve ``dialog.open``: the forms that Slack had before modals."""

from surelane_dev.simulator.webapi.call import ApiError, Method, MethodCall, SlackState
from surelane_dev.simulator.workspace.dialogs import Dialog, dialog_problems
from surelane_dev.simulator.workspace.model import JSON

TRIGGER_ERRORS = {"unknown": "invalid_trigger", "expired": "trigger_expired", "used": "trigger_exchanged"}


def open_dialog(call: MethodCall, slack: SlackState) -> JSON:
    """Open a dialog for the user of the trigger id."""
    for name, error in (("dialog", "missing_dialog"), ("trigger_id", "missing_trigger")):
        if not call.text(name):
            raise ApiError(error)
    content = call.mapping("dialog", "validation_errors") or {}
    if problems := list(dialog_problems(content)):
        lines = [f"[ERROR] {problem}" for problem in problems]
        raise ApiError("validation_errors", response_metadata={"messages": lines})
    trigger = call.text("trigger_id")
    state, user = slack.interactions.trigger(trigger)
    if state == "valid" and not slack.workspace.member(user):
        state = "unknown"
    if state != "valid":
        raise ApiError(TRIGGER_ERRORS[state])
    slack.interactions.use_trigger(trigger)
    channel = slack.interactions.place_of(trigger) or slack.workspace.direct_messages(user).id
    slack.interactions.dialogs[user] = Dialog(content, slack.workspace.team_id, channel)
    return {}


METHODS = {"dialog.open": Method(open_dialog)}
