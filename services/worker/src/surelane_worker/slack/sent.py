"""Look in Slack for replies that earlier attempts posted.

Each message carries the event's id and the reply's ordinal in its ``metadata``: 0 for a handler's first reply, and so
on.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from slack_sdk.errors import SlackApiError
from slack_sdk.models import JsonObject
from slack_sdk.web.async_client import AsyncWebClient

from surelane.events import Event
from surelane_service.logs import Logger
from surelane_worker.slack.client import slack_error, unknown_whether_done
from surelane_worker.slack.place import object_in

Ordinal = int | str
"""The number of a reply in an attempt; in a step, the step's name and the reply's number in it."""

METADATA_TYPE = "surelane_reply"
PAUSES = (1.0, 4.0)
"""Seconds to wait before a message of unknown fate is looked for and then sent again."""
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
RUNNING = ("in_progress", "errored")
"""The states of a streamed message that has not been stopped."""


@dataclass(frozen=True, slots=True)
class Thread:
    """The messages to search: a thread's, or a channel's if ``ts`` is ``None``, between two timestamps."""

    channel: str
    ts: str | None
    since: str | None
    until: str | None = None


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

    async def once(
        self, call: Callable[[], Awaitable[str]], find: Callable[[], Awaitable[str | None]]
    ) -> str:
        """Send a message, and return its timestamp. Where Slack did not answer, find it before sending it again."""
        for pause in PAUSES:
            try:
                return await call()
            except (aiohttp.ClientError, TimeoutError, SlackApiError) as error:
                if not unknown_whether_done(error):
                    raise
                self._log.warning("Slack did not answer", error=type(error).__name__)
                await asyncio.sleep(pause)
                if found := await find():
                    return found
        return await call()

    async def look(self, event: Event, thread: Thread) -> dict[Ordinal, str]:
        """Return the timestamps of the event's replies in the thread now, by ordinal.

        Raises:
            SlackApiError: Slack failed for a reason that may pass.
        """
        found: dict[Ordinal, str] = {}
        async for message in self._messages(thread):
            ordinal = ordinal_of(message, event)
            if ordinal is not None:
                found.setdefault(ordinal, str(message["ts"]))
        return found

    async def running(self, thread: Thread) -> list[str]:
        """Return the timestamps of this bot's streams in the thread that have not ended.

        Raises:
            SlackApiError: Slack failed for a reason that may pass.
        """
        bot = (await self._client.auth_test())["user_id"]
        return [
            str(message["ts"])
            async for message in self._messages(thread)
            if message.get("streaming_state") in RUNNING and message.get("user") == bot
        ]

    async def _messages(self, thread: Thread) -> AsyncIterator[dict[str, Any]]:
        cursor: str | None = None
        for _ in range(PAGES):
            try:
                page = await self._page(thread, cursor)
            except SlackApiError as error:
                if slack_error(error) not in UNREADABLE:
                    raise
                self._log.warning("cannot look for an earlier reply", error=slack_error(error))
                return
            for message in page.get("messages") or []:
                yield message
            cursor = (page.get("response_metadata") or {}).get("next_cursor")
            if not cursor:
                return

    async def _page(self, thread: Thread, cursor: str | None) -> Any:  # noqa: ANN401 - Slack's answer
        asked: dict[str, Any] = {
            "channel": thread.channel,
            "oldest": thread.since,
            "latest": thread.until,
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
