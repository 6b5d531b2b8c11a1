"""What is stored of a Slack thread, in the queue and in history."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from surelane.calls import Calls
from surelane.slack import inner_event


@dataclass(slots=True)
class ThreadEvent:
    """A message of a thread, or an edit. ``turn``: a turn began with it. ``whole``: the app hears the whole channel."""

    id: int
    event_ts: datetime
    turn: bool
    whole: bool
    payload: Any
    notes: Any
    result: Any

    @property
    def slack(self) -> dict[str, Any]:
        return inner_event(self.payload)


class Threads:
    _database: Calls

    async def thread_events(self, groups: Sequence[str], *about: str) -> list[ThreadEvent]:
        """Return what is stored of a thread before a message, and the edits in its channel: ``agent.thread_events``."""
        rows = await self._database.rows("thread_events", groups, *about)
        return [ThreadEvent(*row[:4], *(json.loads(each or "{}") for each in row[4:])) for row in rows]
