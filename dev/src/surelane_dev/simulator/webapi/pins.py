"""Serve what a channel keeps: ``pins.*`` and ``bookmarks.*``, and how far it is read, ``conversations.mark``."""

from urllib.parse import urlsplit

from surelane_dev.simulator.posting.events import new_id
from surelane_dev.simulator.webapi.call import ApiError, MethodCall, is_ts
from surelane_dev.simulator.workspace.model import JSON, Channel
from surelane_dev.simulator.workspace.shapes import message_json

MOST_PINS = MOST_BOOKMARKS = 100
EDITABLE = ("title", "link", "emoji")


def pin(call: MethodCall) -> JSON:
    channel = call.joined_channel()
    message = _pinned(call).message(channel, "timestamp")
    if message.ts in channel.pins:
        raise ApiError("already_pinned")
    if len(channel.pins) >= MOST_PINS:
        raise ApiError("too_many_pins")
    channel.pins[message.ts] = {"created": int(call.workspace.now()), "created_by": call.workspace.bot.id}
    return {}


def unpin(call: MethodCall) -> JSON:
    channel = call.joined_channel()
    if channel.pins.pop(_pinned(call).message(channel, "timestamp").ts, None) is None:
        raise ApiError("no_pin")
    return {}


def list_pins(call: MethodCall) -> JSON:
    """Return the pinned messages, the newest pin first."""
    channel = call.joined_channel()
    items = [
        {"type": "message", "channel": channel.id, **pinned, "message": message_json(call.workspace, message)}
        for ts, pinned in reversed(channel.pins.items())
        if (message := channel.messages.get(ts)) and message.subtype != "tombstone"
    ]
    return {"items": items}


def add_bookmark(call: MethodCall) -> JSON:
    channel = call.joined_channel("channel_id")
    if call.text("type") != "link":
        raise ApiError("invalid_bookmark_type")
    if "link" not in call.arguments:
        raise ApiError("invalid_link")
    if len(channel.bookmarks) >= MOST_BOOKMARKS:
        raise ApiError("too_many_bookmarks")
    bookmark: JSON = {"id": new_id("Bk"), "channel_id": channel.id, "type": "link", "rank": "", "emoji": ""}
    bookmark |= {"date_created": int(call.workspace.now()), "app_id": call.workspace.app_id}
    answer = _written(call, bookmark)
    channel.bookmarks[bookmark["id"]] = bookmark
    return answer


def edit_bookmark(call: MethodCall) -> JSON:
    return _written(call, _bookmark(call, call.joined_channel("channel_id")))


def remove_bookmark(call: MethodCall) -> JSON:
    channel = call.joined_channel("channel_id")
    del channel.bookmarks[_bookmark(call, channel)["id"]]
    return {}


def list_bookmarks(call: MethodCall) -> JSON:
    return {"bookmarks": list(call.joined_channel("channel_id").bookmarks.values())}


def mark(call: MethodCall) -> JSON:
    """Take note of how far a channel is read. Others do not see it."""
    call.joined_channel()
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


def _written(call: MethodCall, bookmark: JSON) -> JSON:
    given = {name: call.text(name) for name in EDITABLE if name in call.arguments}
    if "link" in given and urlsplit(given["link"]).scheme not in ("http", "https"):
        raise ApiError("invalid_link")
    here = call.workspace
    by = {"last_updated_by_user_id": here.bot.id, "last_updated_by_team_id": here.team_id}
    bookmark |= {**given, **by, "date_updated": int(here.now())}
    return {"bookmark": bookmark}
