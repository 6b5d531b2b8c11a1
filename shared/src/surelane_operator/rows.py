"""Rows of events as the database gives them."""

import json
from typing import Any

from surelane.calls import Row

LISTED = """id, kind, status, attempts, max_attempts, locked_by, run_at, left(error, 1000) as error
, left(reason, 1000) as reason, dedupe_key
, item_key, group_key, event_ts, enqueued_at, left(enqueued_by, 200) as enqueued_by
, heartbeat_at, deadline, finished_at, finished_by, traceparent, continuation_id, waits_for, lease_until, priority"""
"""The columns of a list: a few kilobytes per event at most, and no large value that PostgreSQL keeps apart."""


def parsed(row: Row) -> dict[str, Any]:
    """Return a row as a dictionary, with its JSON parsed."""
    parsed = {"payload", "errors", "result", "changes"}
    return {
        name: json.loads(value) if name in parsed and isinstance(value, str) else value
        for name, value in row.items()
    }
