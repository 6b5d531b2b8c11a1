"""The columns of history, and which of them the views, the lists and an event's page show.

This is the one list of them in Python: the operator's lists and page are made from it. A test compares it with
``agent.event_hist``, the views, ``agent.end_events`` and the model of a listed event, and names what is missing.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class HistoryColumn:
    """A column of the views ``agent.live_job``, ``agent.ended_job`` and ``agent.job``.

    Attributes:
        of: the column of ``agent.event_hist`` that it shows, if that has another name.
        listed: its SQL in a list of events; ``None``: only a single event has it, as it may be large.
        label: its name among the facts of an event's page; ``None``: it is not there, or in a place of its own.
        sort: how the page shows it.
    """

    name: str
    of: str = ""
    listed: str | None = ""
    label: str | None = None
    sort: Literal["text", "id", "moment"] = "text"


COLUMNS = (
    HistoryColumn("id"),
    HistoryColumn("kind"),
    HistoryColumn("status", of="outcome"),
    HistoryColumn("payload", of="event", listed=None),
    HistoryColumn("attempts"),
    HistoryColumn("max_attempts"),
    HistoryColumn("locked_by", of="claimed_by"),
    HistoryColumn("run_at", of="vt"),
    # Of an error a list has the type: its text may quote people.
    HistoryColumn("error", of="errors", listed="errors -> -1 ->> 'type' as error"),
    HistoryColumn("errors", listed=None),
    HistoryColumn("result", listed=None),
    HistoryColumn("reason", listed="left(reason, 1000) as reason"),
    HistoryColumn("dedupe_key", label="Dedupe key", sort="id"),
    HistoryColumn("item_key", label="Key", sort="id"),
    HistoryColumn("group_key"),
    HistoryColumn("event_ts", label="Happened", sort="moment"),
    HistoryColumn("enqueued_at"),
    HistoryColumn("enqueued_by", listed="left(enqueued_by, 200) as enqueued_by"),
    HistoryColumn("claimed", listed=None),
    HistoryColumn("heartbeat_at"),
    HistoryColumn("deadline", label="Deadline", sort="moment"),
    HistoryColumn("finished_at"),
    HistoryColumn("finished_by"),
    HistoryColumn("traceparent"),
    HistoryColumn("changes", listed=None),
    HistoryColumn("continuation_id"),
    HistoryColumn("waits_for"),
    HistoryColumn("lease_until", of="vt", label="Lease until", sort="moment"),
    HistoryColumn("priority", of="lane", label="Priority"),
)
"""In the order of the views."""
INTERNAL = ("head", "retrying", "cancelled_by", "notes", "fails_with_children")
"""The columns of ``agent.event_hist`` that no view shows."""
LISTED = ", ".join(column.listed or column.name for column in COLUMNS if column.listed is not None)
"""The columns of a list: a few kilobytes per event at most."""
