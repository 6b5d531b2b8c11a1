"""Bound how many messages that no person wrote are taken in one thread: two bots may answer each other endlessly."""

import asyncio
from collections import OrderedDict, deque

from surelane.slack import is_shared, place_of
from surelane_ingest.envelope import Take

WITHIN = 60.0
"""Seconds within which the messages of a thread are counted."""
MOST_THREADS = 10_000
"""Threads that are remembered. Beyond it, the one that was quiet for longest is forgotten."""

Thread = tuple[str | None, str | None, str | None]


class Loops:
    """Count the messages of each thread since a person wrote there. This process alone knows the counts."""

    def __init__(self, most: int) -> None:
        """``most``: how many are taken in :data:`WITHIN`."""
        self._most = most
        self._threads: OrderedDict[Thread, deque[float]] = OrderedDict()

    def refuses(self, event: Take) -> bool:
        """Return whether an event is one too many. A person's message ends the count of its thread."""
        if event.by_person is None:
            return False
        thread = _thread(event)
        if event.by_person:
            self._threads.pop(thread, None)
            return False
        since = asyncio.get_running_loop().time() - WITHIN
        taken = self._threads.get(thread, deque[float]())
        while taken and taken[0] <= since:
            taken.popleft()
        return len(taken) >= self._most

    def count(self, event: Take) -> None:
        """Count an event that was stored, and not for the second time."""
        if event.by_person is not False:
            return
        thread = _thread(event)
        self._threads.setdefault(thread, deque()).append(asyncio.get_running_loop().time())
        self._threads.move_to_end(thread)
        if len(self._threads) > MOST_THREADS:
            self._threads.popitem(last=False)


def _thread(event: Take) -> Thread:
    """Return the thread of a message; a direct message that begins one belongs to those beside it."""
    payload = event.payload or {}
    place = place_of(payload)
    top_level = (place.channel or "").startswith("D") and place.thread_ts == place.message_ts
    workspace = None if is_shared(payload) else place.workspace
    return workspace, place.channel, None if top_level else place.thread_ts
