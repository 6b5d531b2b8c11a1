"""Events as values: what is claimed, how a claim is settled, and what the database answered."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import Any

from surelane.figures import Figures

DEFAULT_MAX_ATTEMPTS = 3
"""Attempts in total where neither the event nor its kind has a maximum; the database's default, too."""
LANES = 16
"""Parts of the queue; the database's number, too (``agent.lane``)."""
MOST_MEMBERS = 100
"""Members of a group that a claim brings along with its head, at most; the database's number, too."""
DEAD_FOR = timedelta(minutes=5)
"""A claim stands until its lease ends, and no longer than this after its last heartbeat: then it is rescued.

Workers and the rescue use this one value: a worker stops what it can no longer be sure to hold.
"""


@dataclass(frozen=True, slots=True)
class Peek:
    """What a worker waits for, as of a moment.

    Attributes:
        now: that moment, by the database's clock.
        vts: from when on the first event of each lane and kind is visible, lane-major; ``None`` where there is none.
        paused: those of the kinds that are paused, of which nothing is told.
        took: how long the database looked.
        cron_in: seconds until the next named schedule is due; ``None`` where there is none.
        figures: the queue's, if they were asked for.
    """

    now: datetime
    vts: Sequence[datetime | None]
    paused: frozenset[str]
    took: timedelta
    cron_in: float | None
    figures: Figures | None = None


@dataclass
class Event:  # not frozen: freezing makes building one four times as dear, and workers build tens of thousands a second
    """One claimed event. Unknown fields of Slack's envelope are kept in :attr:`payload`.

    Attributes:
        id: the event's id in the queue, kept when it is requeued.
        kind: what it is: ``slack.app_mention``, ``agent-turn``, ...
        event_ts: when it happened, by Slack's clock where Slack gave one.
        attempts: how often it has been tried, this attempt included.
        claim: how often it has been claimed, this claim included; with :attr:`id` it fences every settle.
        vt: when this claim's lease ends, as of the claim.
        prior_vt: since when it was visible before this claim; ``None`` where the claim did not say.
        body: the event as stored, JSON text.
        item_key: its natural key: Slack's ``event_id``, or the schedule's key.
        group_key: the entity it belongs to; events of one entity are handed to one worker at a time.
        max_attempts: attempts in total: its own maximum, or its kind's.
        enqueued_at: when it was stored.
        errors: what went wrong in earlier attempts, oldest first, JSON text of an array.
        traceparent: the W3C context of the span that stored it.
        lane: where claims found it; ``None`` where the claim did not say.
        notes: what earlier claims noted for this one (:meth:`Queue.note_event`), JSON text of an object.
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

    @cached_property
    def payload(self) -> dict[str, Any]:
        """The event as stored, parsed on first use: Slack's whole envelope, or a job's payload."""
        parsed: dict[str, Any] = json.loads(self.body)
        return parsed

    @property
    def slack(self) -> dict[str, Any]:
        """The inner Slack event: the envelope's ``event``, or the payload itself where there is no envelope."""
        inner = self.payload.get("event")
        return inner if isinstance(inner, dict) else self.payload

    @property
    def key(self) -> str:
        """What people look it up by, and what its trace id follows from: the item key, else the queue's id."""
        return self.item_key or str(self.id)


class Settled(StrEnum):
    """What the database answered to a settle or a heartbeat of one event."""

    DONE = "done"
    STALE = "stale"
    """Another claim holds the event, or it ended already: nothing was changed."""
    BUSY = "busy"
    """A lock was held; nothing was changed; try again, the lease is kept."""


@dataclass(slots=True)  # not frozen, as Event
class Completion:
    """An event to be moved to history as completed. ``result`` is JSON text."""

    id: int
    claim: int
    result: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that failed.

    Attributes:
        error: JSON text of an object: ``type``, ``message``, ``at``, ``worker``, ``attempt``.
        retry_in: seconds until the next attempt; ignored when this was the last one.
        final: true to end the event now, whatever attempts remain.
        reason: a short word for history when the event ends: ``attempts_exhausted``, ``channel_not_found``, ...
    """

    id: int
    claim: int
    error: str
    retry_in: float = 0.0
    final: bool = False
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Inserted:
    """What became of one event of a batch of inserts. ``duplicate``: ``id`` is the event that was there already."""

    id: int
    duplicate: bool = field(default=False)
