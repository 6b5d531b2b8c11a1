"""Serve ``chat.scheduleMessage``, ``chat.deleteScheduledMessage`` and ``chat.scheduledMessages.list``."""

from datetime import timedelta
from functools import partial

from surelane_dev.simulator.posting.events import new_id
from surelane_dev.simulator.webapi.call import ApiError, MethodCall
from surelane_dev.simulator.webapi.chat import content_of, thread_of
from surelane_dev.simulator.webapi.conversations import page_of
from surelane_dev.simulator.workspace.model import JSON, Channel
from surelane_dev.simulator.workspace.scheduled import Later

FARTHEST = timedelta(days=120)
WINDOW, MOST_IN_WINDOW = 300, 30
"""At most 30 messages may be due in a channel within five minutes."""
TOO_LATE = 60
"""Seconds before a message is due from which on it can no longer be deleted."""


def schedule(call: MethodCall) -> JSON:
    workspace, channel = call.workspace, call.joined_channel()
    content, thread_ts = content_of(call), thread_of(call, channel)
    post_at = _moment(call, channel)
    post = partial(workspace.speak, channel, **content, thread_ts=thread_ts)
    later = Later(new_id("Q"), workspace, channel, post_at, int(workspace.now()), content["text"], post)
    call.slack.scheduled.add(later)
    shape = {"type": "delayed_message", "subtype": "bot_message", "bot_id": workspace.bot_id}
    shape |= {"text": later.text, "blocks": content["blocks"]}
    return {"channel": channel.id, "scheduled_message_id": later.id, "post_at": post_at, "message": shape}


def _moment(call: MethodCall, channel: Channel) -> int:
    text, now = call.text("post_at"), call.workspace.now()
    if not text.isdecimal():
        raise ApiError("invalid_time")
    post_at = int(text)
    if post_at <= now:
        raise ApiError("time_in_past")
    if post_at > now + FARTHEST.total_seconds():
        raise ApiError("time_too_far")
    near = [each for each in call.slack.scheduled.messages.values() if each.channel is channel]
    if sum(each.post_at // WINDOW == post_at // WINDOW for each in near) >= MOST_IN_WINDOW:
        raise ApiError("restricted_too_many")
    return post_at


def delete_scheduled(call: MethodCall) -> JSON:
    """Delete a scheduled message, unless it is due within a minute."""
    channel = call.channel()
    later = call.slack.scheduled.messages.get(call.text("scheduled_message_id"))
    if later is None or later.channel is not channel or later.post_at - TOO_LATE < call.workspace.now():
        raise ApiError("invalid_scheduled_message_id")
    del call.slack.scheduled.messages[later.id]
    return {}


def list_scheduled(call: MethodCall) -> JSON:
    """Return the scheduled messages of the workspace, or of one of its channels."""
    only = call.channel() if call.text("channel") else None
    here = [each for each in call.slack.scheduled.messages.values() if each.workspace is call.workspace]
    found = [
        {"id": each.id, "channel_id": each.channel.id, "post_at": each.post_at, "text": each.text}
        | {"date_created": each.created}
        for each in here
        if only in (None, each.channel)
    ]
    page, cursor = page_of(found, call, default=100, key="scheduled")
    return {"scheduled_messages": page, "response_metadata": {"next_cursor": cursor}}
