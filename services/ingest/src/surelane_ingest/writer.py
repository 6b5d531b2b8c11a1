"""Group commit: events that arrive while an insert is under way share the next one, so nothing waits for a
timer.

Flushers take everything that waits and insert it in one round trip. A batch that PostgreSQL refuses says that
one of its events is bad or blocked, not which: its events go on to a second lane where each is inserted
alone, so that it neither fails nor delays the others. Events are keyed, so inserting one again after an
unclear failure is harmless.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Self

from surelane import Queue
from surelane.events import Inserted
from surelane.logs import get_logger
from surelane.pool import RETRYABLE, UNAVAILABLE, Connection
from surelane_ingest.connections import Connections
from surelane_ingest.metrics import Metrics

MAX_BATCH = 500
FLUSHERS = 6
"""Two for batches, four for events on their own."""

_PATIENCE = 0.1
"""Seconds after which an event that no flusher has taken is the second flusher's."""

_PAUSE = 0.1
"""Seconds before the database is tried again."""
_LOCK_NOT_AVAILABLE = "55P03"
_NEVER_STORABLE = ("22", "23", "54")
"""SQLSTATE classes that speak of the event itself: data exception, constraint violation, limit exceeded."""

_logger = get_logger(__name__)


class NotStored(StrEnum):
    """Why an event was not stored, or is not known to be."""

    UNAVAILABLE = "the database did not answer in time"
    FULL = "too many events wait for the database"
    BLOCKED = "another transaction holds this event"
    REFUSED = "the database does not work with this version"
    UNSTORABLE = "the database cannot hold this event"
    """For ever: the one reason for which another try is useless."""


Answer = Inserted | NotStored


@dataclass(frozen=True, slots=True)
class _Pending:
    body: str
    key: str
    traceparent: str | None
    since: float
    answer: asyncio.Future[Answer]


class _Lane:
    """Events that wait, first come first served, and the flushers that take them, ``limit`` at a time."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[_Pending] = deque()
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, events: Iterable[_Pending]) -> None:
        self._waiting.extend(events)
        self._arrived.set()

    def put_back(self, events: list[_Pending]) -> None:
        self._waiting.extendleft(reversed(events))
        self._arrived.set()

    async def take(self, patience: float = 0.0) -> list[_Pending]:
        """Everything that waits, up to the limit, once the first has waited for ``patience`` seconds."""
        loop = asyncio.get_running_loop()
        batch: list[_Pending] = []
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

    def _pop(self) -> list[_Pending]:
        batch: list[_Pending] = []
        while self._waiting and len(batch) < self._limit:
            pending = self._waiting.popleft()
            if not pending.answer.done():  # else nobody waits for it any more
                batch.append(pending)
        return batch


class Writer:
    """Stores events. Use it as a context manager: its flushers run for the length of the block."""

    def __init__(
        self,
        connections: Connections,
        *,
        budget: timedelta,
        buffer: int,
        max_batch: int = MAX_BATCH,
    ) -> None:
        """Makes a writer.

        Args:
            connections: lends each flusher a connection, :data:`FLUSHERS` at most.
            budget: how long an event may wait for its commit, waiting for its turn included.
            buffer: how many events may wait.
            max_batch: events a batch at most.
        """
        self._connections = connections
        self._budget = budget.total_seconds()
        self._buffer = buffer
        self._shared = _Lane(max_batch)
        self._alone = _Lane(1)
        self._flushers: list[asyncio.Task[None]] = []
        self._working = True
        self.metrics = Metrics(lambda: self.waiting)

    @property
    def waiting(self) -> int:
        """How many events wait for a flusher."""
        return len(self._shared) + len(self._alone)

    async def __aenter__(self) -> Self:
        # One flusher does best: batches side by side are smaller, and wait for one another in the database.
        # The second steps in when the first is held up, by a lock that one of its events waits for.
        lanes = [(self._shared, 0.0), (self._shared, _PATIENCE), *[(self._alone, 0.0)] * (FLUSHERS - 2)]
        self._flushers = [asyncio.create_task(self._flush_forever(*lane)) for lane in lanes]
        return self

    async def __aexit__(self, *_: object) -> None:
        for flusher in self._flushers:
            flusher.cancel()
        await asyncio.gather(*self._flushers, return_exceptions=True)

    async def store(self, body: str, key: str, traceparent: str | None = None) -> Answer:
        """Stores an event; returns once it is committed, or why it is not known to be within the budget.

        Args:
            body: JSON text of an object.
            key: its natural key, by which duplicates are found.
            traceparent: the span that stores it.
        """
        if self.waiting >= self._buffer:
            return NotStored.FULL
        loop = asyncio.get_running_loop()
        pending = _Pending(body, key, traceparent, loop.time(), loop.create_future())
        self._shared.put([pending])
        try:
            async with asyncio.timeout(self._budget):
                return await pending.answer
        except TimeoutError:
            return NotStored.UNAVAILABLE

    async def _flush_forever(self, lane: _Lane, patience: float) -> None:
        while True:
            batch = await lane.take(patience)
            try:
                async with self._connections.lend() as connection:
                    while True:
                        await self._flush(connection, lane, batch)
                        batch = []
                        batch = await lane.take(patience)
            except Exception as error:  # noqa: BLE001 - a flusher outlives whatever befalls a connection
                lane.put_back(batch)
                self._report(type(error).__name__)
                await asyncio.sleep(_PAUSE)

    async def _flush(self, connection: Connection, lane: _Lane, batch: list[_Pending]) -> None:
        started = time.perf_counter()
        failure = ""
        try:
            inserted = await self._insert(connection, batch)
        except UNAVAILABLE as error:
            failure = type(error).__name__
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, every event of the batch gets its answer
            failure = type(error).__name__
            self._separate(lane, batch, error)
        else:
            self._report(None)
            for pending, answer in zip(batch, inserted, strict=True):
                _settle(pending, answer)
        finally:
            self.metrics.inserted(time.perf_counter() - started, failure)

    async def _insert(self, connection: Connection, batch: list[_Pending]) -> list[Inserted]:
        async with asyncio.timeout(self._budget):
            return await Queue(connection).insert_events(
                [pending.body for pending in batch],
                traceparents=[pending.traceparent for pending in batch],
                item_keys=[pending.key for pending in batch],
            )

    def _separate(self, lane: _Lane, batch: list[_Pending], error: Exception) -> None:
        if lane is self._shared or isinstance(error, RETRYABLE):
            self._alone.put(batch)
            return
        reason = _reason(error)
        if reason is NotStored.REFUSED:
            _logger.error(
                "the database refuses events", error=type(error).__name__, sqlstate=_sqlstate(error)
            )
        for pending in batch:
            _settle(pending, reason)

    def _report(self, error: str | None) -> None:
        """Says once that the database went away, and once that it is back."""
        if error is None and not self._working:
            _logger.info("the database is back")
        elif error is not None and self._working:
            _logger.error("the database is unavailable", error=error)
        self._working = error is None


def _settle(pending: _Pending, answer: Answer) -> None:
    if not pending.answer.done():
        pending.answer.set_result(answer)


def _sqlstate(error: Exception) -> str:
    return str(getattr(error, "sqlstate", None) or "")


def _reason(error: Exception) -> NotStored:
    sqlstate = _sqlstate(error)
    if sqlstate == _LOCK_NOT_AVAILABLE:
        return NotStored.BLOCKED
    return NotStored.UNSTORABLE if sqlstate[:2] in _NEVER_STORABLE else NotStored.REFUSED
