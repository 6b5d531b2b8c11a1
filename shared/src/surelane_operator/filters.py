"""Filters of events and pages of them."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

STATUSES = ("pending", "scheduled", "running", "completed", "failed", "cancelled", "expired")
LIVE, ENDED = STATUSES[:3], STATUSES[3:]
MAX_ID = 2**63 - 1
MAX_CURSOR = 100
"""Characters."""


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


def read_cursor(text: str) -> Cursor:
    """Read a cursor.

    Raises:
        ValueError: :func:`cursor_after` has not written it.
    """
    try:
        identity, _, moment = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode().partition(" ")
        finished_at = datetime.fromisoformat(moment).astimezone(UTC) if moment else None
        cursor = Cursor(int(identity), finished_at)
    except (TypeError, ValueError, OverflowError):  # JSON may bring another type than text
        cursor = None
    if cursor is None or len(text) > MAX_CURSOR or not 0 < cursor.id <= MAX_ID:
        raise ValueError("pass `next` of the page before")
    return cursor


def cursor_after(row: Mapping[str, Any]) -> str:
    """Return the cursor of the page that follows a row."""
    moment = row["finished_at"].isoformat() if row["finished_at"] else ""
    return base64.urlsafe_b64encode(f"{row['id']} {moment}".encode()).decode().rstrip("=")
