"""What is stored of a Slack thread, in the queue and in history."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from surelane.calls import Calls


@dataclass(slots=True)
class ThreadEvent:
    """A message of a thread, or the edit of one, as an event.

    Attributes:
        event_ts: when it happened; of a message that is answered anew after an edit, when that was.
        turn: whether an agent's turn began with it. It knows the thread up to there.
        whole: whether a message of the thread came by a subscription to all messages of the channel.
        payload: Slack's envelope.
        notes: what its attempts noted.
        result: its result, once it has ended.
    """

    id: int
    event_ts: datetime
    turn: bool
    whole: bool
    payload: Any
    notes: Any
    result: Any


class Threads:
    """The SQL function that reads a thread."""

    _database: Calls

    async def thread_events(
        self, groups: Sequence[str], channel: str, root: str, ts: str, step: str
    ) -> list[ThreadEvent]:
        """Return what is stored of a thread before a message, from the newest turn on; at most of 90 days.

        Args:
            groups: the group of the thread; then that of the message that began it, if it is another one.
            channel: the thread's channel. Its edits since then are returned, too.
            root: the timestamp of the message that began the thread.
            ts: the timestamp of the message.
            step: the name of a step that each turn has.
        """
        rows = await self._database.rows("thread_events", groups, channel, root, ts, step)
        return [ThreadEvent(*row[:4], *(json.loads(each or "{}") for each in row[4:])) for row in rows]
