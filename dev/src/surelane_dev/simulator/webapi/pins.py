"""Serve what a channel keeps: ``pins.*`` and ``bookmarks.*``, and how far it is read, ``conversations.mark``."""

from urllib.parse import urlsplit

from surelane_dev.simulator.posting.events import new_id
from surelane_dev.simulator.webapi.call import (
    ApiError,
    Method,
    MethodCall,
    SlackState,
    is_ts,
    joined_channel,
    message_of,
)
from surelane_dev.simulator.workspace.model import JSON, Channel
from surelane_dev.simulator.workspace.shapes import message_json

MOST_PINS = MOST_BOOKMARKS = 100
EDITABLE = ("title", "link", "emoji")


def pin(call: MethodCall, slack: SlackState) -> JSON:
    """Pin a message to its channel."""
    channel = joined_channel(call, slack)
    message = message_of(_pinned(call), channel, "timestamp")
    if message.ts in channel.pins:
        raise ApiError("already_pinned")
    if len(channel.pins) >= MOST_PINS:
        raise ApiError("too_many_pins")
    channel.pins[message.ts] = {"created": int(slack.workspace.now()), "created_by": slack.workspace.bot.id}
    return {}


def unpin(call: MethodCall, slack: SlackState) -> JSON:
    """Take a pin away."""
    channel = joined_channel(call, slack)
    if channel.pins.pop(message_of(_pinned(call), channel, "timestamp").ts, None) is None:
        raise ApiError("no_pin")
    return {}


def list_pins(call: MethodCall, slack: SlackState) -> JSON:
    """Return the pinned messages, the newest pin first."""
    channel = joined_channel(call, slack)
    items = [
        {
            "type": "message",
            "channel": channel.id,
            **pinned,
            "message": message_json(slack.workspace, message),
        }
        for ts, pinned in reversed(channel.pins.items())
        if (message := channel.messages.get(ts)) and message.subtype != "tombstone"
    ]
    return {"items": items}


def add_bookmark(call: MethodCall, slack: SlackState) -> JSON:
    """Put a link above a channel."""
    channel = joined_channel(call, slack, "channel_id")
    if call.text("type") != "link":
        raise ApiError("invalid_bookmark_type")
    if "link" not in call.arguments:
        raise ApiError("invalid_link")
    if len(channel.bookmarks) >= MOST_BOOKMARKS:
        raise ApiError("too_many_bookmarks")
    bookmark: JSON = {"id": new_id("Bk"), "channel_id": channel.id, "type": "link", "rank": "", "emoji": ""}
    bookmark |= {"date_created": int(slack.workspace.now()), "app_id": slack.workspace.app_id}
    answer = _written(call, slack, bookmark)
    channel.bookmarks[bookmark["id"]] = bookmark
    return answer


def edit_bookmark(call: MethodCall, slack: SlackState) -> JSON:
    """Change a bookmark's title, link or emoji."""
    return _written(call, slack, _bookmark(call, joined_channel(call, slack, "channel_id")))


def remove_bookmark(call: MethodCall, slack: SlackState) -> JSON:
    """Take a bookmark away."""
    channel = joined_channel(call, slack, "channel_id")
    del channel.bookmarks[_bookmark(call, channel)["id"]]
    return {}


def list_bookmarks(call: MethodCall, slack: SlackState) -> JSON:
    """Return a channel's bookmarks."""
    return {"bookmarks": list(joined_channel(call, slack, "channel_id").bookmarks.values())}


def mark(call: MethodCall, slack: SlackState) -> JSON:
    """Take note of how far a channel is read. Others do not see it."""
    joined_channel(call, slack)
    if not is_ts(call.text("ts")):
        raise ApiError("invalid_timestamp")
    return {}


def _pinned(call: MethodCall) -> MethodCall:
    if not call.text("timestamp"):
        raise ApiError("no_item_specified")
    if not is_ts(call.text("timestamp")):
        raise ApiError("bad_timestamp")
    return call


def _bookmark(call: MethodCall, channel: Channel) -> JSON:
    found = channel.bookmarks.get(call.text("bookmark_id"))
    if found is None:
        raise ApiError("not_found")
    return found


def _written(call: MethodCall, slack: SlackState, bookmark: JSON) -> JSON:
    given = {name: call.text(name) for name in EDITABLE if name in call.arguments}
    if "link" in given and urlsplit(given["link"]).scheme not in ("http", "https"):
        raise ApiError("invalid_link")
    here = slack.workspace
    by = {"last_updated_by_user_id": here.bot.id, "last_updated_by_team_id": here.team_id}
    bookmark |= {**given, **by, "date_updated": int(here.now())}
    return {"bookmark": bookmark}


METHODS = {
    "pins.add": Method(pin, ("channel",), "pins:write"),
    "pins.remove": Method(unpin, ("channel",), "pins:write"),
    "pins.list": Method(list_pins, ("channel",), "pins:read", reads_json=False),
    "bookmarks.add": Method(add_bookmark, ("channel_id", "title", "type"), "bookmarks:write"),
    "bookmarks.edit": Method(edit_bookmark, ("bookmark_id", "channel_id"), "bookmarks:write"),
    "bookmarks.remove": Method(remove_bookmark, ("bookmark_id", "channel_id"), "bookmarks:write"),
    "bookmarks.list": Method(list_bookmarks, ("channel_id",), "bookmarks:read"),
    "conversations.mark": Method(mark, ("channel", "ts"), "channels:manage"),
}
