"""Group commit: events that arrive while an insert is under way share the next one, so nothing waits for a timer.

Flushers take everything that waits and insert it in one round trip. A batch that PostgreSQL refuses says that
one of its events is bad or blocked, not which: its events go on to a second lane where each is inserted
alone, so that it neither fails nor delays the others. Events are keyed, so inserting one again after an
unclear failure is harmless.
"""

import asyncio
import time
from datetime import timedelta
from typing import Self

from surelane.calls import Connection
from surelane.events import Inserted
from surelane_ingest.connections import Connections
from surelane_ingest.lane import Answer, Lane, NotStored, Pending
from surelane_ingest.metrics import Metrics
from surelane_service.intake import Intake
from surelane_service.logs import get_logger
from surelane_service.pool import RETRYABLE, UNAVAILABLE

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
        self._shared = Lane(max_batch)
        self._alone = Lane(1)
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
        pending = Pending(body, key, traceparent, loop.time(), loop.create_future())
        self._shared.put([pending])
        try:
            async with asyncio.timeout(self._budget):
                return await pending.answer
        except TimeoutError:
            return NotStored.UNAVAILABLE

    async def _flush_forever(self, lane: Lane, patience: float) -> None:
        while True:
            batch = await lane.take(patience)
            try:
                async with self._connections.lend() as connection:
                    while await self._flush(connection, lane, batch):
                        batch = []  # answered: nothing that happens now may put it back
                        batch = await lane.take(patience)
                    connection.terminate()
            except Exception as error:  # noqa: BLE001 - a flusher outlives whatever befalls a connection
                lane.put_back(batch)
                self._report(type(error).__name__)
                await asyncio.sleep(_PAUSE)

    async def _flush(self, connection: Connection, lane: Lane, batch: list[Pending]) -> bool:
        """Inserts a batch and answers its events, or passes them on; returns whether the connection is still of use."""
        started = time.perf_counter()
        failure = ""
        try:
            inserted = await self._insert(connection, batch)
        except UNAVAILABLE as error:
            failure = type(error).__name__
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, every event of the batch gets its answer
            failure = type(error).__name__
            return self._separate(lane, batch, error)
        else:
            self._report(None)
            for pending, answer in zip(batch, inserted, strict=True):
                pending.settle(answer)
            return True
        finally:
            self.metrics.inserted(time.perf_counter() - started, failure)

    async def _insert(self, connection: Connection, batch: list[Pending]) -> list[Inserted]:
        async with asyncio.timeout(self._budget):
            return await Intake(connection).insert_events(
                [pending.body for pending in batch],
                traceparents=[pending.traceparent for pending in batch],
                item_keys=[pending.key for pending in batch],
            )

    def _separate(self, lane: Lane, batch: list[Pending], error: Exception) -> bool:
        reason = _reason(error)
        if lane is self._shared or reason is None:
            self._alone.put(batch)
        else:
            for pending in batch:
                pending.settle(reason)
        if reason is NotStored.REFUSED:
            # Of the whole database, not of an event: read-only since a failover, say. Another connection may do better.
            self._report(type(error).__name__)
        return reason is not NotStored.REFUSED

    def _report(self, error: str | None) -> None:
        """Says once that the database went away, and once that it is back."""
        if error is None and not self._working:
            _logger.info("the database takes events again")
        elif error is not None and self._working:
            _logger.error("the database does not take events", error=error)
        self._working = error is None


def _reason(error: Exception) -> NotStored | None:
    """Why an event was not stored on its own; ``None``: it may be sent again at once."""
    if isinstance(error, RETRYABLE):
        return None
    sqlstate = str(getattr(error, "sqlstate", None) or "")
    if sqlstate == _LOCK_NOT_AVAILABLE:
        return NotStored.BLOCKED
    return NotStored.UNSTORABLE if sqlstate[:2] in _NEVER_STORABLE else NotStored.REFUSED
