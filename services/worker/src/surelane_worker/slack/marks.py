"""The mark of a reply: metadata of a message that says which reply to which event it is.

A later attempt finds a reply by it. Handlers do not see it: what their clients read has the app's own metadata
alone, because libraries take any metadata of a message for theirs.
"""

from collections.abc import Mapping
from typing import Any, Self

from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from surelane.events import Event
from surelane.slack import object_in
from surelane_worker.slack.client import plain

METADATA_TYPE = "surelane_reply"
Ordinal = int | str
"""The number of a reply in an attempt; in a step, the step's name and the reply's number in it."""


def metadata_of(event: Event, ordinal: Ordinal, given: object = None) -> dict[str, Any]:
    """Return the metadata that marks a message as the event's reply number ``ordinal``.

    ``given``: the message's own metadata, if it has any. The mark is added to it.
    """
    mark = {"event_id": event.key, "ordinal": ordinal}
    given = plain(given)
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


def without_marks(value: Any) -> Any:
    """Return JSON from Slack without marks, at any depth. Metadata of the app stays."""
    if isinstance(value, list):
        return [without_marks(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    shown = {name: without_marks(each) for name, each in value.items()}
    metadata = object_in(shown.get("metadata"))
    payload = object_in(metadata.get("event_payload"))
    if metadata.get("event_type") == METADATA_TYPE:
        del shown["metadata"]
    elif METADATA_TYPE in payload:
        kept = {name: each for name, each in payload.items() if name != METADATA_TYPE}
        shown["metadata"] = {**metadata, "event_payload": kept}
    return shown


class Unmarked(AsyncSlackResponse):
    """An answer of Slack without marks, on each of its pages."""

    @classmethod
    def of(cls, answer: AsyncSlackResponse, client: AsyncWebClient) -> "Unmarked":
        """Return an answer for a handler. ``client`` reads the further pages."""
        names = ("http_verb", "api_url", "req_args", "headers", "status_code")
        shared = {name: getattr(answer, name) for name in names}
        return cls(client=client, data=without_marks(answer.data), **shared)

    async def __anext__(self) -> Self:
        await super().__anext__()  # type: ignore[no-untyped-call]
        self.data = without_marks(self.data)
        return self


class HandlersClient(AsyncWebClient):
    """The plain Web API client of a handler: it calls by another client."""

    marked: AsyncWebClient

    @classmethod
    def like(cls, client: AsyncWebClient) -> "HandlersClient":
        """Return a client with the token, the session and the retries of another one."""
        given = {name: getattr(client, name) for name in ("token", "base_url", "timeout", "ssl", "proxy")}
        made = cls(
            **given, logger=client.logger, session=client.session, retry_handlers=client.retry_handlers
        )
        made.headers, made.default_params = dict(client.headers), dict(client.default_params)
        made.marked = client
        return made

    async def api_call(self, api_method: str, **request: Any) -> AsyncSlackResponse:
        """Call a method, and return Slack's answer without marks."""
        return Unmarked.of(await self.marked.api_call(api_method, **request), self.marked)
