"""The messages and the answers of Bolt's ``respond``."""

from collections.abc import Sequence
from typing import Any

from slack_sdk.models import JsonObject
from slack_sdk.webhook import WebhookResponse

from surelane_worker.slack.client import ResponseRefusedError

NAMES = ("text", "blocks", "attachments", "response_type", "replace_original", "delete_original")


def message_of(*args: Any, **arguments: Any) -> dict[str, Any]:
    """Return the message of a call ``respond(text, blocks, attachments, …)`` or ``respond(message)``."""
    given = dict(zip(NAMES, args, strict=False)) | arguments
    whole = given.get("text")
    message = whole if isinstance(whole, dict) else given
    return {name: _plain(value) for name, value in message.items() if value is not None}


def refusal(url: str, error: ResponseRefusedError) -> WebhookResponse:
    """Return Slack's refusal as Bolt does; an app may ignore it.

    Raises:
        ResponseRefusedError: another attempt may succeed.
    """
    if error.status >= 500:
        raise error
    return WebhookResponse(url=url, status_code=error.status, body="", headers={})


def _plain(value: object) -> object:
    if isinstance(value, JsonObject):
        return value.to_dict()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(part) for part in value]
    return value
