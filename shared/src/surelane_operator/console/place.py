"""Where in Slack an event comes from, read from its payload, by the rules of the SQL functions of these names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Place:
    """The ids of a workspace, a channel, a user and a message."""

    workspace: str | None
    channel: str | None
    user: str | None
    ts: str | None


def place_of(payload: object) -> Place:
    """Return the place of an event; parts that the payload does not have are ``None``."""
    outer = payload if isinstance(payload, Mapping) else {}
    inner = outer.get("event")
    if outer.get("type") != "event_callback" or not isinstance(inner, Mapping):
        inner = outer
    return Place(
        workspace=_text(outer.get("team_id")) or _id(outer.get("team")),
        channel=_id(inner.get("channel"))
        or _text(_within(inner, "item", "channel"))
        or _text(inner.get("channel_id"))
        or _text(_within(inner, "container", "channel_id")),
        user=_id(inner.get("user"))
        or _text(inner.get("user_id"))
        or _text(_within(inner, "message", "user")),
        ts=_text(inner.get("ts"))
        or _text(_within(inner, "item", "ts"))
        or _text(_within(inner, "message", "ts"))
        or _text(_within(inner, "container", "message_ts")),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _id(value: object) -> str | None:
    return _text(value.get("id")) if isinstance(value, Mapping) else _text(value)


def _within(outer: Mapping[str, Any], name: str, field: str) -> object:
    inner = outer.get(name)
    return inner.get(field) if isinstance(inner, Mapping) else None
