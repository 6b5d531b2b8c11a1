"""Serve ``reactions.*``."""

import re

from surelane_dev.simulator.webapi.call import (
    ApiError,
    Method,
    MethodCall,
    SlackState,
    channel_of,
    is_ts,
    joined_channel,
    message_of,
    permalink,
)
from surelane_dev.simulator.workspace.model import JSON, Message
from surelane_dev.simulator.workspace.shapes import message_json

_NAME = re.compile(r"[a-z0-9_+'-]{1,100}(::skin-tone-[2-6])?")
MOST = 23


def add(call: MethodCall, slack: SlackState) -> JSON:
    """Add the bot's reaction."""
    message = _item(call, slack)
    name = _name(call)
    if name not in message.reactions and len(message.reactions) >= MOST:
        raise ApiError("too_many_emoji")
    if not slack.workspace.react(message, slack.workspace.bot.id, name):
        raise ApiError("already_reacted")
    return {}


def remove(call: MethodCall, slack: SlackState) -> JSON:
    """Remove the bot's reaction."""
    message = _item(call, slack)
    if not slack.workspace.unreact(message, slack.workspace.bot.id, _name(call)):
        raise ApiError("no_reaction")
    return {}


def get(call: MethodCall, slack: SlackState) -> JSON:
    """Return the message with its reactions."""
    if not (call.text("channel") and call.text("timestamp")):
        raise ApiError("no_item_specified")
    channel = channel_of(call, slack)
    message = message_of(call, channel, "timestamp")
    shape = message_json(slack.workspace, message) | {"permalink": permalink(slack, message)}
    return {"type": "message", "channel": channel.id, "message": shape}


def _item(call: MethodCall, slack: SlackState) -> Message:
    if not (call.text("channel") and call.text("timestamp")):
        raise ApiError("no_item_specified")
    channel = joined_channel(call, slack)
    if not is_ts(call.text("timestamp")):
        raise ApiError("bad_timestamp")
    return message_of(call, channel, "timestamp")


def _name(call: MethodCall) -> str:
    name = call.text("name").strip(":")
    if not _NAME.fullmatch(name):
        raise ApiError("invalid_name")
    return name


METHODS = {
    "reactions.add": Method(add, ("channel", "timestamp", "name"), "reactions:write"),
    "reactions.remove": Method(remove, ("name",), "reactions:write"),
    "reactions.get": Method(get, (), "reactions:read", reads_json=False),
}
