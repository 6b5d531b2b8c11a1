"""Serve ``conversations.*``."""

import base64
from collections.abc import Callable
from typing import TypeVar

from surelane_dev.simulator.webapi.call import ApiError, MethodCall
from surelane_dev.simulator.workspace.model import JSON, Channel, Message
from surelane_dev.simulator.workspace.shapes import channel_json, message_json

DEFAULT_LIMIT = 100
MAX_REPLIES = 1000

Item = TypeVar("Item")


def replies(call: MethodCall) -> JSON:
    """Return a thread, oldest first. Its first message begins every page.

    For the ``ts`` of a reply, return that reply alone: a thread has the ``ts`` of its first message.
    """
    channel = call.joined_channel()
    message = channel.messages.get(call.text("ts"))
    if message is None or message.visible_to is not None:
        raise ApiError("thread_not_found")
    within = _range(call)
    found = [m for m in channel.replies(message.ts) if within(m.ts)]
    page, cursor = page_of(found, call, default=MAX_REPLIES, key="next_ts")
    return _messages(call, [message, *page], cursor)


def history(call: MethodCall) -> JSON:
    """Return a channel's messages, newest first."""
    channel = call.joined_channel()
    public = (m for m in channel.messages.values() if m.in_channel and m.visible_to is None)
    within = _range(call)
    shown = [m for m in public if within(m.ts)]
    page, cursor = page_of(shown[::-1], call, default=DEFAULT_LIMIT, key="next_ts")
    counts = {"pin_count": 0, "channel_actions_ts": None, "channel_actions_count": 0}
    return _messages(call, page, cursor) | counts


def info(call: MethodCall) -> JSON:
    return {"channel": channel_json(call.workspace, call.channel())}


def channels_of(call: MethodCall) -> list[Channel]:
    """Return the channels of a call's ``types``, by default the public ones."""
    types = set((call.text("types") or "public_channel").split(","))
    if types - {"public_channel", "private_channel", "mpim", "im"}:
        raise ApiError("invalid_types")
    channels = call.workspace.channels.values()
    return [c for c in channels if ("im" if c.is_im else "public_channel") in types]


def list_channels(call: MethodCall) -> JSON:
    """Return the channels of the given ``types``, by default the public ones."""
    page, cursor = page_of(channels_of(call), call, default=DEFAULT_LIMIT, key="channel")
    shown = [channel_json(call.workspace, channel) for channel in page]
    return {"channels": shown, "response_metadata": {"next_cursor": cursor}}


def open_conversation(call: MethodCall) -> JSON:
    """Return the direct messages with a user. They are always open."""
    named = bool(call.text("channel"))
    channel = call.channel() if named else _direct(call)
    shape = channel_json(call.workspace, channel) if call.flag("return_im") else {"id": channel.id}
    return {"no_op": True, "already_open": True, "channel": shape}


def join(call: MethodCall) -> JSON:
    """Let the bot join a channel. To be in it already is a warning."""
    channel = call.channel()
    if channel.is_im:
        raise ApiError("method_not_supported_for_channel_type")
    new = call.workspace.join(channel, call.workspace.bot.id)
    answer: JSON = {"channel": channel_json(call.workspace, channel)}
    warning = "already_in_channel"
    return answer if new else answer | {"warning": warning, "response_metadata": {"warnings": [warning]}}


def _direct(call: MethodCall) -> Channel:
    users = call.text("users").split(",")
    if users == [""]:
        raise ApiError("users_list_not_supplied")
    if len(users) > 1:
        raise ApiError("method_not_supported_for_channel_type")
    user = call.workspace.users.get(users[0])
    if user is None:
        raise ApiError("user_not_found")
    if user.is_bot:
        raise ApiError("cannot_dm_bot")
    return call.workspace.direct_messages(user.id)


def _messages(call: MethodCall, page: list[Message], cursor: str) -> JSON:
    metadata = call.flag("include_all_metadata")
    shown = [message_json(call.workspace, message, metadata=metadata) for message in page]
    answer: JSON = {"messages": shown, "has_more": bool(cursor)}
    return answer | ({"response_metadata": {"next_cursor": cursor}} if cursor else {})


def _range(call: MethodCall) -> Callable[[str], bool]:
    """Return a function that says whether a message's ``ts`` is in the call's range of time."""
    inclusive = call.flag("inclusive")
    oldest, latest = _moment(call, "oldest", 0.0), _moment(call, "latest", float("inf"))

    def within(ts: str) -> bool:
        return oldest <= float(ts) <= latest if inclusive else oldest < float(ts) < latest

    return within


def _moment(call: MethodCall, name: str, default: float) -> float:
    try:
        return float(call.text(name) or default)
    except ValueError:
        raise ApiError(f"invalid_ts_{name}") from None


def page_of(items: list[Item], call: MethodCall, *, default: int, key: str) -> tuple[list[Item], str]:
    """Return the page for a call's ``cursor`` and ``limit``, and the cursor of the next page; empty at the end."""
    limit = call.number("limit", default)
    start = _position(call.text("cursor"), key)
    end = start + limit
    cursor = base64.b64encode(f"{key}:{end}".encode()).decode() if end < len(items) else ""
    return items[start:end], cursor


def _position(cursor: str, key: str) -> int:
    if not cursor:
        return 0
    try:
        name, _, position = base64.b64decode(cursor, validate=True).decode().partition(":")
    except ValueError:
        raise ApiError("invalid_cursor") from None
    if name != key or not position.isdecimal():
        raise ApiError("invalid_cursor")
    return int(position)
