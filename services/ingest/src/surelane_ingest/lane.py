"""Events on their way into the database: each with its answer to come, waiting in a lane for a flusher."""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from surelane.events import Inserted


class NotStored(StrEnum):
    """Why an event was not stored, or is not known to be."""

    UNAVAILABLE = "the database did not answer in time"
    FULL = "too many events wait for the database"
    BLOCKED = "another transaction holds this event"
    REFUSED = "the database takes no events"
    UNSTORABLE = "the database cannot hold this event"
    """For ever: the one reason for which another try is useless."""


Answer = Inserted | NotStored


@dataclass(frozen=True, slots=True)
class Pending:
    """An event whose request waits for its answer, since ``since`` by the event loop's clock."""

    body: str
    key: str
    traceparent: str | None
    since: float
    answer: asyncio.Future[Answer]

    def settle(self, answer: Answer) -> None:
        """Answers the request, if it still waits."""
        if not self.answer.done():
            self.answer.set_result(answer)


class Lane:
    """Events that wait, first come first served, and the flushers that take them, ``limit`` at a time."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[Pending] = deque()
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, events: Iterable[Pending]) -> None:
        """Lets events wait behind the others."""
        self._waiting.extend(events)
        self._arrived.set()

    def put_back(self, events: list[Pending]) -> None:
        """Lets events that were taken wait again, before the others."""
        self._waiting.extendleft(reversed(events))
        self._arrived.set()

    async def take(self, patience: float = 0.0) -> list[Pending]:
        """Everything that waits, up to the limit, once the first has waited for ``patience`` seconds."""
        loop = asyncio.get_running_loop()
        batch: list[Pending] = []
        while not batch:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            fresh = self._waiting[0].since + patience - loop.time()
            if patience and fresh > 0:
                await asyncio.sleep(fresh)
            else:
                batch = self._pop()
        return batch

    def _pop(self) -> list[Pending]:
        batch: list[Pending] = []
        while self._waiting and len(batch) < self._limit:
            pending = self._waiting.popleft()
            if not pending.answer.done():  # else nobody waits for it any more
                batch.append(pending)
        return batch
