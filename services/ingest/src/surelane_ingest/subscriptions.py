"""Which of the events Slack sends are taken, and under which key: pure functions over a parsed envelope."""

from collections.abc import Mapping
from typing import Any

_CHANNEL_TYPES = {"channel": "channels", "group": "groups", "im": "im", "mpim": "mpim"}
_PLAIN_SUBTYPES = (None, "file_share", "thread_broadcast")
_MEMBERSHIP = ("member_joined_channel", "member_left_channel")
_ALSO_MENTIONS = frozenset({"message.channels", "message.groups", "message.mpim"})

Json = Mapping[str, Any]


class Subscriptions:
    """The event types that are taken, by the names Slack's app settings use (``app_mention``, ``message.im``, ...)."""

    def __init__(self, types: frozenset[str]) -> None:
        self._types = types
        self._twice = (
            {"app_mention", *(_ALSO_MENTIONS & types)}
            if "app_mention" in types and _ALSO_MENTIONS & types
            else set()
        )

    def reason_to_ignore(self, envelope: Json, event: Json) -> str | None:
        """Why an event is not taken, as a short word for logs and metrics; ``None`` where it is."""
        name = subscription(event)
        if name not in self._types:
            return "type"
        if _is_own(envelope, event, name):
            return "own"
        if name == "app_mention" or event.get("type") == "message":
            return _reason_to_ignore_message(event)
        return None

    def message_key(self, envelope: Json, event: Json) -> str | None:
        """The key under which a message and a mention that are one message are one event; ``None`` where none
        is needed.

        Slack delivers a message that mentions the app twice, as ``app_mention`` and as ``message.channels``,
        with two event ids and in either order. Where both are taken, the first to arrive is stored and the
        other is its duplicate.
        """
        if subscription(event) not in self._twice:
            return None
        parts = (envelope.get("team_id"), event.get("channel"), event.get("ts"))
        return "message:" + ":".join(parts) if all(isinstance(part, str) and part for part in parts) else None  # type: ignore[arg-type]


def subscription(event: Json) -> str | None:
    """The name of an inner event's subscription: its type, and for messages the kind of channel."""
    name = event.get("type")
    if not isinstance(name, str):
        return None
    if name == "message":
        where = event.get("channel_type")
        return (
            f"message.{_CHANNEL_TYPES[where]}" if isinstance(where, str) and where in _CHANNEL_TYPES else name
        )
    return name


def _is_own(envelope: Json, event: Json, name: str) -> bool:
    app = event.get("app_id")
    if app and app == envelope.get("api_app_id"):
        return True
    # That the app itself joined or left a channel is news to it.
    return (
        name not in _MEMBERSHIP and event.get("user") is not None and event.get("user") == _bot_user(envelope)
    )


def _bot_user(envelope: Json) -> str | None:
    authorizations = envelope.get("authorizations")
    first = authorizations[0] if isinstance(authorizations, list) and authorizations else None
    if not isinstance(first, dict) or first.get("is_bot") is not True:
        return None
    user = first.get("user_id")
    return user if isinstance(user, str) else None


def _reason_to_ignore_message(event: Json) -> str | None:
    if event.get("subtype") not in _PLAIN_SUBTYPES:
        return "subtype"
    if event.get("hidden"):
        return "hidden"
    return "bot" if event.get("bot_id") else None
