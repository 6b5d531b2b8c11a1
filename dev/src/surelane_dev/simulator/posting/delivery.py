"""Record the requests to the app, and the result of each attempt."""

import asyncio
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlencode
from uuid import uuid4

from surelane_dev.simulator.workspace.model import JSON

PATH = "/slack/events"
"""Where the app takes everything: events, commands and interactions."""

FORM = "application/x-www-form-urlencoded"
State = Literal["held", "sending", "retrying", "delivered", "failed"]


@dataclass(frozen=True, slots=True)
class DeliveryAttempt:
    """One request and its result."""

    at: float
    seconds: float
    retry_num: int
    retry_reason: str | None
    status: int | None
    problem: str | None
    """The reason of a failure, in the words of ``x-slack-retry-reason``; ``None`` if it was acknowledged."""
    no_retry: bool = False
    answer: bytes = field(default=b"", repr=False)


@dataclass(slots=True)
class Delivery:
    """A request to the app, with all its attempts."""

    id: str
    """The natural key of its event: Slack's event id, or a key that follows from the trigger id."""
    kind: str
    content_type: str
    body: bytes = field(repr=False)
    channel: str | None = None
    ts: str | None = None
    team_id: str | None = None
    """The workspace whose installation it is for."""
    address: str | None = None
    """The address of the message that its event reports: workspace, channel and ``ts``.

    In a shared channel, it has no workspace.
    """
    own_message: bool = False
    """Whether its event is about the app's own message, which the app should ignore."""
    state: State = "sending"
    next_at: float | None = None
    """The time of the next retry."""
    attempts: list[DeliveryAttempt] = field(default_factory=list)
    job: JSON | None = None
    """The event's status in the queue, if there is a database."""
    answered: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    """Set at the first answer of any kind, and when the delivery is given up."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The item keys under which the queue may have its event.

        Ingest stores a message under its address if two events may report it.
        """
        if self.address is None:
            return (self.id,)
        return (self.id, f"message:{self.address}", f"mention:{self.address}")


def event_delivery(envelope: JSON) -> Delivery:
    inner = envelope["event"]
    item = inner.get("item") or inner.get("message") or inner
    return Delivery(
        id=envelope["event_id"],
        kind=".".join(filter(None, (inner["type"], inner.get("subtype") or inner.get("channel_type")))),
        content_type="application/json",
        body=json.dumps(envelope).encode(),
        channel=inner.get("channel") or item.get("channel"),
        ts=item.get("ts"),
        team_id=envelope["context_team_id"],
        address=_address(envelope) if inner["type"] in {"message", "app_mention"} else None,
        own_message="bot_id" in (inner.get("message") or inner.get("previous_message") or inner),
    )


def _address(envelope: JSON) -> str:
    inner = envelope["event"]
    team = () if envelope["is_ext_shared_channel"] else (envelope["team_id"],)
    return ":".join((*team, inner["channel"], inner["ts"]))


def form_delivery(kind: str, trigger_id: str | None, form: Mapping[str, str], team_id: str) -> Delivery:
    """Return the delivery of a slash command or an interaction. It has no event id, but mostly a trigger id."""
    key = hashlib.sha256(trigger_id.encode()).hexdigest() if trigger_id else None
    identity = f"trigger:{key}" if key else f"interaction:{uuid4().hex}"
    return Delivery(identity, kind, FORM, urlencode(form).encode(), team_id=team_id)


def delivery_json(delivery: Delivery) -> JSON:
    shown = ("id", "kind", "channel", "ts", "team_id", "own_message", "state", "next_at", "job")
    attempts = [attempt_json(attempt) for attempt in delivery.attempts]
    return {name: getattr(delivery, name) for name in shown} | {"attempts": attempts}


def attempt_json(attempt: DeliveryAttempt) -> JSON:
    shown = ("at", "retry_num", "retry_reason", "status", "problem", "no_retry")
    return {name: getattr(attempt, name) for name in shown} | {"ms": round(attempt.seconds * 1000, 1)}
