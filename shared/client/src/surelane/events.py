"""Events as values: :class:`Event`, as a worker hands it to its handler, and :class:`Inserted`."""

import re
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from surelane.json_text import read_json
from surelane.slack import inner_event
from surelane.text import typed_in


@dataclass
class Event:  # Not frozen: a worker builds tens of thousands a second, and a frozen one takes four times as long.
    """One claimed event. Unknown fields of Slack's envelope are kept in :attr:`payload`.

    Attributes:
        id: the event's id in the queue, kept when it runs again.
        kind: the kind, which selects the handler: ``slack.app_mention``, ``agent-turn``, ...
        event_ts: when it happened, by Slack's clock where Slack gave one.
        attempts: the number of this attempt; 1 is the first.
        claim: the number of this claim; with :attr:`id` it fences every settle.
        vt: when this claim's lease ends, as of the claim.
        body: the event as stored, JSON text.
        prior_vt: since when it was visible before this claim; ``None`` where the claim did not return it.
        item_key: its natural key: Slack's ``event_id``, or the schedule's key.
        group_key: its group; one worker at a time handles the events of a group.
        max_attempts: attempts in total: its own maximum, or its kind's.
        enqueued_at: when it was stored.
        errors: the errors of earlier attempts, oldest first, JSON text of an array.
        traceparent: the W3C context of the span that stored it.
        lane: where claims found it; ``None`` where the claim did not return it.
        notes: what earlier claims noted on the event for this one, JSON text of an object. An event that runs
            another one again has some at its first claim: that event.
        workspace: the workspace with whose data key it is encrypted; ``None`` where the service has not determined it.
        match: where the compiled pattern of the handler's route was found; ``None`` for a string or no route.
    """

    id: int
    kind: str
    event_ts: datetime
    attempts: int
    claim: int
    vt: datetime
    body: str
    prior_vt: datetime | None = None
    item_key: str | None = None
    group_key: str | None = None
    max_attempts: int | None = None
    enqueued_at: datetime | None = None
    errors: str = "[]"
    traceparent: str | None = None
    lane: int | None = None
    notes: str | None = None
    workspace: str | None = None
    match: re.Match[str] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def payload(self) -> dict[str, Any]:
        """The event as stored, parsed on first use: Slack's whole envelope, or a job's payload."""
        parsed: dict[str, Any] = read_json(self.body)
        return parsed

    @property
    def slack(self) -> dict[str, Any]:
        """The inner Slack event: the envelope's ``event``, or the payload itself where there is no envelope."""
        return inner_event(self.payload)

    @property
    def text(self) -> str:
        """What the person typed, empty where there is no text: a message's, without Slack's escapes, or a command's.

        Of an edited message it is the new text, of a deleted one the old. A job's ``text`` is as its producer wrote it.
        """
        return typed_in(self.kind, self.payload)

    @property
    def key(self) -> str:
        """The item key, else the queue's id. People search by it, and the trace id is derived from it."""
        return self.item_key or str(self.id)


@dataclass(frozen=True, slots=True)
class Inserted:
    """The answer to one insert. With ``duplicate``, ``id`` is the event that was stored before."""

    id: int
    duplicate: bool = field(default=False)
