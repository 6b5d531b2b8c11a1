"""Read from an event's payload the place in Slack where it is answered."""

from dataclasses import dataclass
from typing import Any

from surelane.events import Event

SLACK_KINDS = "slack."
"""The prefix of the kinds of Slack's events."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where to answer an event.

    Attributes:
        channel: the channel's id, if there is one.
        thread_ts: the thread's timestamp; the message's own if it began no thread yet.
        message_ts: the timestamp of the message that the event is about.
        since: a lookup of earlier answers starts at this timestamp.
        user: the person who caused the event.
        team: the person's workspace.
        response_url: the URL for answers to commands and interactions; a secret. Only Slack's own events have one:
            a job's payload comes from its producer, who may not choose where the worker posts.
    """

    channel: str | None = None
    thread_ts: str | None = None
    message_ts: str | None = None
    since: str | None = None
    user: str | None = None
    team: str | None = None
    response_url: str | None = None


def place_of(event: Event) -> Place:
    """Return the place of an event of the Events API, a slash command, or an interaction."""
    payload, inner = event.payload, event.slack
    about = (
        object_in(inner.get("item"))
        or object_in(inner.get("assistant_thread"))
        or object_in(inner.get("message"))
    )
    message_ts = text_in(inner.get("ts")) or text_in(about.get("ts"))
    return Place(
        channel=_channel(inner) or _channel(about),
        thread_ts=text_in(inner.get("thread_ts")) or text_in(about.get("thread_ts")) or message_ts,
        message_ts=message_ts,
        since=message_ts or text_in(inner.get("event_ts")),
        user=_identity(inner.get("user")) or text_in(inner.get("user_id")),
        # In a channel that organizations share, a message names its author's workspace.
        team=text_in(inner.get("user_team"))
        or text_in(payload.get("team_id"))
        or _identity(payload.get("team")),
        response_url=_response_url(payload) if event.kind.startswith(SLACK_KINDS) else None,
    )


def _response_url(payload: dict[str, Any]) -> str | None:
    """Return the URL for answers. A modal with ``response_url_enabled`` has a list of them."""
    urls = payload.get("response_urls")
    first = object_in(urls[0]) if isinstance(urls, list) and urls else {}
    return text_in(payload.get("response_url")) or text_in(first.get("response_url"))


def _channel(holder: dict[str, Any]) -> str | None:
    return _identity(holder.get("channel")) or text_in(holder.get("channel_id"))


def _identity(value: object) -> str | None:
    """Return an id. Slack gives it as text, or inside an object."""
    return text_in(value.get("id")) if isinstance(value, dict) else text_in(value)


def object_in(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def text_in(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
