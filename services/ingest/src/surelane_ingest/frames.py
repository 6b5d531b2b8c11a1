"""Read Socket Mode's frames, and acknowledge them: pure functions. None of them raises."""

import json
import re
from dataclasses import dataclass

from surelane_ingest.envelope import (
    Envelope,
    Malformed,
    Subscriptions,
    command_of,
    event_of,
    interaction_of,
    object_of,
)
from surelane_ingest.json_text import Json

KINDS = ("events_api", "slash_commands", "interactive")
MAX_ID = 200
_WORD = re.compile(r"[a-z_]{1,50}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Hello:
    """The first frame of a connection. ``connections`` is how many the app has now, this one included."""

    connections: int


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Slack will end the connection soon. ``reason`` is Slack's word for why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Delivered:
    """An envelope. ``identity`` names it in the acknowledgement, which may carry an answer if ``takes_answer``.

    ``kind``: one of :data:`KINDS`, or ``other``. ``retry``: the number of Slack's retry; ``None``: it is none.
    """

    identity: str
    kind: str
    content: Envelope
    retry: str | None = None
    takes_answer: bool = False


Frame = Hello | Disconnect | Delivered | Malformed


def read_frame(text: str, subscriptions: Subscriptions) -> Frame:
    parsed = object_of(text)
    if isinstance(parsed, Malformed):
        return parsed
    frame = parsed.value
    identity = frame.get("envelope_id")
    if isinstance(identity, str) and 0 < len(identity) <= MAX_ID:
        kind, payload, retry = frame.get("type"), frame.get("payload"), frame.get("retry_attempt")
        content: Envelope = Malformed("an unknown type")
        if known := kind in KINDS:
            content = _content(kind, payload, subscriptions, altered=parsed.altered)
        return Delivered(
            identity,
            str(kind) if known else "other",
            content,
            str(retry) if isinstance(retry, int) and 0 < retry < 1000 else None,
            frame.get("accepts_response_payload") is True,
        )
    match frame.get("type"):
        case "hello":
            count = frame.get("num_connections")
            return Hello(count if isinstance(count, int) else 1)
        case "disconnect":
            return Disconnect(word(frame.get("reason")))
        case _:
            return Malformed("no envelope")


def acknowledgement(delivered: Delivered, answer: str | None) -> str:
    """Return the text that acknowledges an envelope, with a handler's answer, JSON text, where Slack takes one."""
    acknowledged = {"envelope_id": delivered.identity}
    if answer is None or not delivered.takes_answer:
        return json.dumps(acknowledged)
    payload = json.loads(answer)
    if isinstance(payload, str):
        payload = {"text": payload}
    return json.dumps({**acknowledged, "payload": payload} if isinstance(payload, dict) else acknowledged)


def word(value: object) -> str:
    """Return a name that Slack gave for a reason or an error; what is no such name becomes ``unknown``."""
    return value if isinstance(value, str) and _WORD.fullmatch(value) else "unknown"


def _content(kind: object, payload: object, subscriptions: Subscriptions, *, altered: bool) -> Envelope:
    if not isinstance(payload, dict):
        return Malformed("no payload")
    # Reading has made the text safe to store; what Slack put around the payload is left out.
    parsed = Json(json.dumps(payload), payload, altered)
    match kind:
        case "events_api":
            return event_of(parsed, subscriptions)
        case "slash_commands":
            return command_of(parsed)
        case _:
            return interaction_of(parsed)
