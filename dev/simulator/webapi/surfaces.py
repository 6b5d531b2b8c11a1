"""Serve ``assistant.threads.*`` and ``views.*``."""

from dev.simulator.interactions import View
from dev.simulator.posting.payloads import opened_view
from dev.simulator.webapi.call import ApiError, Call, Method, Slack, invalid_arguments, joined_channel
from dev.simulator.workspace.model import JSON


def set_status(call: Call, slack: Slack) -> JSON:
    """Set the bot's status in a thread. An empty status, a reply or two minutes end it."""
    channel, thread_ts = _thread(call, slack)
    slack.workspace.set_status(channel, thread_ts, call.text("status"))
    return {}


def accept(call: Call, slack: Slack) -> JSON:
    """Accept a title or suggested prompts: check them, and do not show them."""
    _thread(call, slack)
    return {}


def open_view(call: Call, slack: Slack) -> JSON:
    """Open a modal for the user of the trigger id."""
    content = _content(call)
    state, user = slack.interactions.use_trigger(call.text("trigger_id"))
    match state:
        case "unknown":
            raise ApiError("invalid_trigger_id")
        case "expired":
            raise ApiError("expired_trigger_id")
        case "used":
            raise ApiError("exchanged_trigger_id")
    view = opened_view(slack.workspace, content)
    slack.interactions.show(View(user, view))
    return {"view": view}


def update_view(call: Call, slack: Slack) -> JSON:
    """Replace an open modal."""
    shown = slack.interactions.views.get(call.text("view_id"))
    if shown is None:
        raise ApiError("not_found")
    if call.text("hash") not in {"", shown.content["hash"]}:
        raise ApiError("hash_conflict")
    identity = {name: shown.content[name] for name in ("id", "root_view_id")}
    view = opened_view(slack.workspace, _content(call)) | identity
    slack.interactions.show(View(shown.user, view))
    return {"view": view}


def _thread(call: Call, slack: Slack) -> tuple[str, str]:
    channel = joined_channel(call, slack, "channel_id")
    message = channel.messages.get(call.text("thread_ts"))
    if message is None:
        raise ApiError("invalid_thread_ts")
    return channel.id, message.thread_ts or message.ts


def _content(call: Call) -> JSON:
    view = call.mapping("view", "invalid_arguments") or {}
    missing = [name for name in ("type", "title", "blocks") if name not in view]
    if missing:
        raise invalid_arguments(*(f"missing required field: {name} [json-pointer:/view]" for name in missing))
    return view


METHODS = {
    "assistant.threads.setStatus": Method(set_status, ("channel_id", "thread_ts", "status"), "chat:write"),
    "assistant.threads.setTitle": Method(accept, ("channel_id", "thread_ts", "title"), "chat:write"),
    "assistant.threads.setSuggestedPrompts": Method(accept, ("channel_id", "prompts"), "chat:write"),
    "views.open": Method(open_view, ("trigger_id", "view")),
    "views.update": Method(update_view, ("view_id", "view")),
}
