"""Serve ``reactions.*``."""

import re

from surelane_dev.simulator.webapi.call import ApiError, MethodCall, is_ts
from surelane_dev.simulator.workspace.model import JSON, Message
from surelane_dev.simulator.workspace.shapes import message_json

_NAME = re.compile(r"[a-z0-9_+'-]{1,100}(::skin-tone-[2-6])?")
MOST = 23


def add(call: MethodCall) -> JSON:
    message = _item(call)
    name = _name(call)
    if name not in message.reactions and len(message.reactions) >= MOST:
        raise ApiError("too_many_emoji")
    if not call.workspace.react(message, call.workspace.bot.id, name):
        raise ApiError("already_reacted")
    return {}


def remove(call: MethodCall) -> JSON:
    message = _item(call)
    if not call.workspace.unreact(message, call.workspace.bot.id, _name(call)):
        raise ApiError("no_reaction")
    return {}


def get(call: MethodCall) -> JSON:
    if not (call.text("channel") and call.text("timestamp")):
        raise ApiError("no_item_specified")
    channel = call.channel()
    message = call.message(channel, "timestamp")
    shape = message_json(call.workspace, message) | {"permalink": call.permalink(message)}
    return {"type": "message", "channel": channel.id, "message": shape}


def _item(call: MethodCall) -> Message:
    if not (call.text("channel") and call.text("timestamp")):
        raise ApiError("no_item_specified")
    channel = call.joined_channel()
    if not is_ts(call.text("timestamp")):
        raise ApiError("bad_timestamp")
    return call.message(channel, "timestamp")


def _name(call: MethodCall) -> str:
    name = call.text("name").strip(":")
    if not _NAME.fullmatch(name):
        raise ApiError("invalid_name")
    return name
