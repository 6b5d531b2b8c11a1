"""Where in Slack an event happened, so that answers go there. Pure: reads payloads, calls nothing."""

from dataclasses import dataclass
from typing import Any

from surelane.events import Event

SLACK_KINDS = "slack."
"""How the kinds of Slack's events begin."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where to answer an event.

    Attributes:
        channel: the channel's id, where there is one.
        thread_ts: the thread's timestamp; the message's own where it began no thread yet.
        message_ts: the timestamp of the message the event is about.
        since: answers are looked for from this timestamp on.
        user: who caused the event.
        team: the workspace.
        response_url: where commands and interactions are answered; a secret. Only Slack's own events have one:
            the payload of any other job is its producer's, who may not choose where the worker posts to.
    """

    channel: str | None = None
    thread_ts: str | None = None
    message_ts: str | None = None
    since: str | None = None
    user: str | None = None
    team: str | None = None
    response_url: str | None = None


def place_of(event: Event) -> Place:
    """The place of an event of the Events API, a slash command, or an interaction."""
    payload, inner = event.payload, event.slack
    about = (
        _object(inner.get("item")) or _object(inner.get("assistant_thread")) or _object(inner.get("message"))
    )
    message_ts = _text(inner.get("ts")) or _text(about.get("ts"))
    return Place(
        channel=_channel(inner) or _channel(about),
        thread_ts=_text(inner.get("thread_ts")) or _text(about.get("thread_ts")) or message_ts,
        message_ts=message_ts,
        since=message_ts or _text(inner.get("event_ts")),
        user=_identity(inner.get("user")) or _text(inner.get("user_id")),
        team=_text(payload.get("team_id")) or _identity(payload.get("team")),
        response_url=_text(payload.get("response_url")) if event.kind.startswith(SLACK_KINDS) else None,
    )


def _channel(holder: dict[str, Any]) -> str | None:
    return _identity(holder.get("channel")) or _text(holder.get("channel_id"))


def _identity(value: object) -> str | None:
    """Slack names things by id, or by an object that has one."""
    return _text(value.get("id")) if isinstance(value, dict) else _text(value)


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
