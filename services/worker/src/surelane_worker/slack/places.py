"""Find where in Slack an event is answered: in which channel and thread, or through which response URL."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from surelane.events import Event
from surelane.slack import Place, first_in, object_in, place_of, text_in
from surelane_worker.slack.client import NowhereToReplyError
from surelane_worker.slack.notes import Thread

CHANNEL_ID = re.compile(r"[CDG][A-Z0-9]+", re.ASCII)
"""A job's payload may have another word where a channel's id is expected, such as ``slack``."""


def taken(place: Place, arguments: dict[str, Any]) -> Thread:
    """Take out of a message's arguments where it is to stand: by default at the place of the event."""
    channel = arguments.pop("channel", place.channel)
    if not channel:
        raise NowhereToReplyError
    thread_ts = place.thread_ts if channel == place.channel else None
    return Thread(channel, arguments.pop("thread_ts", thread_ts), place.since)


def answered(event: Event) -> Place:
    """Return where an event is answered. A message that one person sees begins no thread."""
    place = place_of(event.payload)
    if object_in(event.payload.get("container")).get("is_ephemeral"):
        return replace(place, thread_ts=thread_around(place))
    return place


def thread_around(place: Place) -> str | None:
    """Return the thread that a message or a click is in; ``None``: it is in the channel itself."""
    return None if place.thread_ts == place.message_ts else place.thread_ts


def within(place: Place, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what lets the answer through a response URL stand in the thread of the click or the command."""
    around = thread_around(place)
    if around is None or arguments.get("replace_original") or arguments.get("delete_original"):
        return {}
    return {"thread_ts": around, "replace_original": False}


def thread_of(event: Event) -> dict[str, Any]:
    """Return the event's thread as the methods of assistants' threads name it."""
    place = place_of(event.payload)
    return {"channel_id": place.channel, "thread_ts": place.thread_ts}


def response_url_of(event: Event) -> str | None:
    """Return the URL for answers to a command or an interaction, a secret. A modal may have a list of them.

    A job has none: its payload comes from its producer, who may not choose where the worker posts.
    """
    if not event.kind.startswith("slack."):
        return None
    first = object_in(first_in(event.payload.get("response_urls")))
    return text_in(event.payload.get("response_url")) or text_in(first.get("response_url"))
