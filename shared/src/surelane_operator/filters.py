"""Filters of events and pages of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

STATUSES = ("pending", "scheduled", "running", "completed", "failed", "cancelled", "expired")
LIVE, ENDED = STATUSES[:3], STATUSES[3:]


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter of events; a field that is ``None`` matches every event.

    Attributes:
        statuses: some of :data:`STATUSES`.
        kinds: exact kinds.
        key: an item key, a group key or a dedupe key.
        since: the event was enqueued, or ended if it has, at or after this.
        until: the event was enqueued, or ended if it has, before this.
    """

    statuses: Sequence[str] | None = None
    kinds: Sequence[str] | None = None
    key: str | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last row of a page: its id, and when it ended, if it has."""

    id: int
    finished_at: datetime | None = None
