"""What a verified body means: pure functions from the bytes Slack signed to a value. Nothing here raises."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from surelane_ingest.json_text import Json, NotJsonError, read_json
from surelane_ingest.subscriptions import Subscriptions, subscription

MAX_FORM_FIELDS = 100
_MAX_KEY = 200


@dataclass(frozen=True, slots=True)
class Challenge:
    """Slack checks that the URL is ours: answered with the challenge."""

    challenge: str


@dataclass(frozen=True, slots=True)
class Take:
    """An event to be stored.

    Attributes:
        kind: ``slack.app_mention``, ``slack.command.deploy``, ...: what the database derives too.
        key: its natural key: Slack's event id, the message's, or a hash. Retries have the same.
        body: JSON text that PostgreSQL can hold.
        altered: something PostgreSQL cannot hold was replaced.
    """

    kind: str
    key: str
    body: str
    altered: bool = False


@dataclass(frozen=True, slots=True)
class Ignore:
    """A sound request that is not taken: acknowledged and forgotten. ``reason`` is a word for logs and metrics."""

    reason: str


@dataclass(frozen=True, slots=True)
class RateLimited:
    """Slack drops events of a workspace, in the minute given, because there are too many."""

    team: str
    minute: int


@dataclass(frozen=True, slots=True)
class Malformed:
    """Signed, but nothing that can ever be stored: Slack need not try again. ``reason`` quotes nothing of the body."""

    reason: str


Envelope = Challenge | Take | Ignore | RateLimited | Malformed


def read_event(body: bytes, subscriptions: Subscriptions) -> Envelope:
    """Reads the body of an Events API request."""
    parsed = _object(_text(body))
    if isinstance(parsed, Malformed):
        return parsed
    match parsed.value.get("type"):
        case "event_callback":
            return _event_callback(parsed, subscriptions)
        case "url_verification":
            challenge = parsed.value.get("challenge")
            return Challenge(challenge) if isinstance(challenge, str) else Malformed("no challenge")
        case "app_rate_limited":
            return RateLimited(
                str(parsed.value.get("team_id"))[:20], _int(parsed.value.get("minute_rate_limited"))
            )
        case _:
            return Malformed("not an event")


def read_command(body: bytes) -> Envelope:
    """Reads the form of a slash command; stored as an object of its fields."""
    fields = _form(body)
    if isinstance(fields, Malformed):
        return fields
    if fields.get("ssl_check") == "1":
        return Ignore("ssl_check")
    name = fields.get("command", "").lstrip("/")
    if not name:
        return Malformed("no command")
    parsed = read_json(json.dumps(fields))
    return Take(_kind(f"command.{name}"), _trigger_key(parsed), parsed.text, parsed.altered)


def read_interaction(body: bytes) -> Envelope:
    """Reads the form of an interaction; its one field ``payload`` is stored."""
    fields = _form(body)
    if isinstance(fields, Malformed):
        return fields
    if fields.get("ssl_check") == "1":
        return Ignore("ssl_check")
    parsed = _object(fields.get("payload", ""))
    if isinstance(parsed, Malformed):
        return parsed
    match parsed.value.get("type"):
        case "block_suggestion":  # needs its options in the answer, which a queue cannot give
            return Ignore("block_suggestion")
        case str(name) if name:
            return Take(_kind(name), _trigger_key(parsed), parsed.text, parsed.altered)
        case _:
            return Malformed("no type")


def _event_callback(parsed: Json, subscriptions: Subscriptions) -> Envelope:
    envelope = parsed.value
    event = envelope.get("event")
    if not isinstance(event, dict):
        return Malformed("no event")
    name = subscription(event)
    if name is None:
        return Malformed("no event type")
    reason = subscriptions.reason_to_ignore(envelope, event)
    if reason is not None:
        return Ignore(reason)
    key = subscriptions.message_key(envelope, event) or envelope.get("event_id")
    return Take(
        _kind(name),
        _bounded(key) if isinstance(key, str) and key else _hash(parsed.text),
        parsed.text,
        parsed.altered,
    )


def _object(text: str) -> Json | Malformed:
    try:
        parsed = read_json(text)
    except NotJsonError as error:
        return Malformed(str(error))
    return parsed if isinstance(parsed.value, dict) else Malformed("not a JSON object")


def _text(body: bytes) -> str:
    # A signature can only be verified over UTF-8, so this never replaces anything that was signed.
    return body.decode(errors="replace")


def _form(body: bytes) -> dict[str, str] | Malformed:
    try:
        return dict(parse_qsl(_text(body), keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS))
    except ValueError:
        return Malformed("too many fields")


def _kind(name: str) -> str:
    return f"slack.{name}"[:200]


def _trigger_key(parsed: Json) -> str:
    """Commands and interactions have no event id; ``trigger_id`` names the click or command, and is a secret
    for a while.
    """
    trigger = parsed.value.get("trigger_id")
    return f"trigger:{_sha256(trigger)}" if isinstance(trigger, str) and trigger else _hash(parsed.text)


def _bounded(key: str) -> str:
    return key if len(key) <= _MAX_KEY else _hash(key)


def _hash(text: str) -> str:
    return f"sha256:{_sha256(text)}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _int(value: Any) -> int:  # noqa: ANN401 - whatever Slack put there
    return value if isinstance(value, int) else 0
