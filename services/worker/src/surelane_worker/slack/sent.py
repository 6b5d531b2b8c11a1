"""Which replies to an event stand in Slack already: found by the event's id and the reply's ordinal in ``metadata``."""

from dataclasses import dataclass
from typing import Any

from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

from surelane.events import Event
from surelane_service.logs import Logger
from surelane_worker.slack.errors import slack_error

METADATA_TYPE = "surelane_reply"
PAGES = 10
UNREADABLE = (
    "missing_scope",
    "thread_not_found",
    "not_in_channel",
    "channel_not_found",
    "method_not_supported_for_channel_type",
)
"""Where these are the answer, nobody can tell what was said: rather twice than never."""


@dataclass(frozen=True, slots=True)
class Thread:
    """Where replies are looked for: in a thread, or in a channel where there is none; from ``since`` on."""

    channel: str
    ts: str | None
    since: str | None


class SentReplies:
    """The replies that events have already, as one attempt sees them."""

    def __init__(self, client: AsyncWebClient, log: Logger) -> None:
        self._client = client
        self._log = log
        self._found: dict[tuple[int, Thread], dict[int, str]] = {}

    async def before(self, event: Event, thread: Thread) -> dict[int, str]:
        """What earlier claims of the event said: ordinal → timestamp. Looks once an attempt, and never on the first.

        It is the claims that count, not the attempts: a drained attempt is not counted, but may have replied.
        """
        if event.claim <= 1:
            return {}
        key = (event.id, thread)
        if key not in self._found:
            self._found[key] = await self.look(event, thread)
        return self._found[key]

    async def look(self, event: Event, thread: Thread) -> dict[int, str]:
        """What stands in the thread now: ordinal → timestamp.

        Raises:
            SlackApiError: Slack does not say, for a reason that may pass.
        """
        try:
            return await self._read(event, thread)
        except SlackApiError as error:
            if slack_error(error) not in UNREADABLE:
                raise
            self._log.warning("cannot look for an earlier reply", error=slack_error(error))
            return {}

    async def _read(self, event: Event, thread: Thread) -> dict[int, str]:
        found: dict[int, str] = {}
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


def metadata_of(event: Event, ordinal: int) -> dict[str, Any]:
    """What marks a message as the event's reply number ``ordinal``."""
    return {"event_type": METADATA_TYPE, "event_payload": {"event_id": event.key, "ordinal": ordinal}}


def ordinal_of(message: dict[str, Any], event: Event) -> int | None:
    """Which reply to the event a message is; ``None`` where it is none."""
    metadata = message.get("metadata") or {}
    payload = metadata.get("event_payload") or {}
    if metadata.get("event_type") != METADATA_TYPE or payload.get("event_id") != event.key:
        return None
    ordinal = payload.get("ordinal")
    return ordinal if isinstance(ordinal, int) else None
