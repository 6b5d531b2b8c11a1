"""Look in Slack for replies that earlier attempts posted.

Each message carries the event's id and the reply's ordinal in its ``metadata``: 0 for a handler's first reply, and so
on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slack_sdk.errors import SlackApiError
from slack_sdk.models import JsonObject
from slack_sdk.web.async_client import AsyncWebClient

from surelane.events import Event
from surelane_service.logs import Logger
from surelane_worker.slack.client import slack_error
from surelane_worker.slack.place import object_in

Ordinal = int | str
"""The number of a reply in an attempt; in a step, the step's name and the reply's number in it."""

METADATA_TYPE = "surelane_reply"
PAGES = 10
"""Most pages of messages that a lookup reads."""
UNREADABLE = (
    "missing_scope",
    "thread_not_found",
    "not_in_channel",
    "channel_not_found",
    "method_not_supported_for_channel_type",
)
"""Slack's errors after which a lookup is impossible. The reply is then posted: rather twice than never."""


@dataclass(frozen=True, slots=True)
class Thread:
    """The messages to search: a thread's, or a channel's if ``ts`` is ``None``, from the timestamp ``since`` on."""

    channel: str
    ts: str | None
    since: str | None


class SentReplies:
    """Find replies to events in Slack, for one attempt."""

    def __init__(self, client: AsyncWebClient, log: Logger) -> None:
        self._client = client
        self._log = log
        self._found: dict[tuple[int, Thread], dict[Ordinal, str]] = {}

    async def before(self, event: Event, thread: Thread) -> dict[Ordinal, str]:
        """Return the timestamps of earlier attempts' replies by ordinal. Look once per attempt and thread."""
        key = (event.id, thread)
        if key not in self._found:
            self._found[key] = await self.look(event, thread)
        return self._found[key]

    async def look(self, event: Event, thread: Thread) -> dict[Ordinal, str]:
        """Return the timestamps of the event's replies in the thread now, by ordinal.

        Raises:
            SlackApiError: Slack failed for a reason that may pass.
        """
        try:
            return await self._read(event, thread)
        except SlackApiError as error:
            if slack_error(error) not in UNREADABLE:
                raise
            self._log.warning("cannot look for an earlier reply", error=slack_error(error))
            return {}

    async def _read(self, event: Event, thread: Thread) -> dict[Ordinal, str]:
        found: dict[Ordinal, str] = {}
        cursor: str | None = None
        for _ in range(PAGES):
            page = await self._page(thread, cursor)
            for message in page.get("messages") or []:
                ordinal = ordinal_of(message, event)
                if ordinal is not None:
                    found.setdefault(ordinal, str(message["ts"]))
            cursor = (page.get("response_metadata") or {}).get("next_cursor")
            if not cursor:
                break
        return found

    async def _page(self, thread: Thread, cursor: str | None) -> Any:  # noqa: ANN401 - Slack's answer
        asked: dict[str, Any] = {
            "channel": thread.channel,
            "oldest": thread.since,
            "include_all_metadata": True,
            "cursor": cursor,
        }
        if thread.ts:
            return await self._client.conversations_replies(ts=thread.ts, **asked)
        return await self._client.conversations_history(**asked)


def metadata_of(event: Event, ordinal: Ordinal, given: object = None) -> dict[str, Any]:
    """Return the metadata that marks a message as the event's reply number ``ordinal``.

    Args:
        event: the event that is answered.
        ordinal: the reply's number.
        given: the message's own metadata, if it has any. The mark is added to it.
    """
    mark = {"event_id": event.key, "ordinal": ordinal}
    if isinstance(given, JsonObject):
        given = given.to_dict()
    if not isinstance(given, Mapping) or not given:
        return {"event_type": METADATA_TYPE, "event_payload": mark}
    return {**given, "event_payload": {**(given.get("event_payload") or {}), METADATA_TYPE: mark}}


def ordinal_of(message: dict[str, Any], event: Event) -> Ordinal | None:
    """Return the ordinal of a message that is a reply to the event, or ``None`` for any other message."""
    metadata = message.get("metadata") or {}
    payload = metadata.get("event_payload") or {}
    mark = object_in(payload if metadata.get("event_type") == METADATA_TYPE else payload.get(METADATA_TYPE))
    ordinal = mark.get("ordinal") if mark.get("event_id") == event.key else None
    return ordinal if isinstance(ordinal, int | str) else None
