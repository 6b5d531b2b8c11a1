"""Group commit: events that arrive during an insert share the next one, so no event waits for a timer.

A flusher takes everything that waits and inserts it in one round trip. When PostgreSQL refuses a batch, it does not
say which event is bad or blocked. The events then move to a second lane, which inserts each alone, so that one bad
event neither fails nor delays the others. Events have natural keys, so inserting one again is harmless.

Slack may forget an event only if the event itself is at fault: its SQLSTATE is one that content causes, and the server
cannot read its JSON even without a table. Everything else is an outage, of this event or of all, and Slack tries again.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Self

from opentelemetry.trace import Span, SpanKind, get_current_span

from surelane.calls import Calls, Pool
from surelane.errors import (
    DatabaseUnavailable,
    InvalidInput,
    SurelaneError,
    TransientConflict,
    described,
    told,
)
from surelane.events import Inserted
from surelane.trace_context import traceparent_of
from surelane_ingest.answers import Request
from surelane_ingest.metrics import IngestMetrics
from surelane_service.compatibility import schema_unfit, schema_version
from surelane_service.intake import Intake
from surelane_service.logs import get_logger
from surelane_service.telemetry.setup import messaging
from surelane_service.telemetry.spans import Tracer, failed, sampled

MAX_BATCH = 500
"""The most events per batch."""
FLUSHERS = 6
"""Two for batches, four for single events."""
STEADY = 2.0
"""Seconds without a refusal after which the database counts as working: a full disk takes some events, not all."""
UNREADY_FOR = 10.0
"""Seconds after the last refusal for which ingest is not ready. Only a further event shows whether it is again."""

_PATIENCE = 0.1
"""Seconds after which the second flusher takes an event that the first has not taken."""

_PAUSE = 0.1
"""Seconds between two tries of a database that is away."""

_LOCK_NOT_AVAILABLE = "55P03"

_logger = get_logger(__name__)


class NotStored(StrEnum):
    """Why an event was not stored, or is not known to be."""

    UNAVAILABLE = "the database did not answer in time"
    FULL = "too many events wait for the database"
    BLOCKED = "another transaction holds this event"
    REFUSED = "the database takes no events"
    NO_KEY = "the event's data key cannot be used"
    UNSTORABLE = "the database cannot hold this event"
    """The only reason that another try cannot remove."""


Answer = Inserted | NotStored


@dataclass(frozen=True, slots=True)
class Pending:
    """An event whose request has waited for its answer since ``since``, by the event loop's clock."""

    body: str
    key: str | None
    traceparent: str | None
    request: Request | None
    since: float
    answer: asyncio.Future[Answer]

    def settle(self, answer: Answer) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


class Lane:
    """Waiting events, first in, first out. A flusher takes ``limit`` of them at a time."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[Pending] = deque()
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, events: Iterable[Pending]) -> None:
        self._waiting.extend(events)
        self._arrived.set()

    def put_back(self, events: list[Pending]) -> None:
        """Add events that were taken before the others."""
        self._waiting.extendleft(reversed(events))
        self._arrived.set()

    async def take(self, patience: float = 0.0) -> list[Pending]:
        """Take all events, up to the limit, once the first has waited for ``patience`` seconds."""
        loop = asyncio.get_running_loop()
        batch: list[Pending] = []
        while not batch:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            fresh = self._waiting[0].since + patience - loop.time()
            if patience and fresh > 0:
                await asyncio.sleep(fresh)
                continue
            while self._waiting and len(batch) < self._limit:
                pending = self._waiting.popleft()
                if not pending.answer.done():  # otherwise its request has gone
                    batch.append(pending)
        return batch


class Connections:
    """A pool, and what is known of its server. ``budget``: seconds that a call may take, its connection included."""

    def __init__(self, pool: Pool, budget: timedelta) -> None:
        self.pool = pool
        self.calls = Calls(pool, cuts=True)
        self.budget = budget.total_seconds()
        self._refuses = False
        self._refused_at = 0.0
        self._why = ""

    def refused(self, error: BaseException) -> None:
        """Note that the database took no events, and log once for each reason."""
        if not self._refuses or self._why != told(error):
            _logger.error("the database does not take events", **described(error))
        self._refuses, self._refused_at, self._why = True, time.monotonic(), told(error)

    def took(self) -> None:
        """Note that the database took events, and log once that it does so again."""
        if self._refuses and time.monotonic() - self._refused_at >= STEADY:
            _logger.info("the database takes events again")
            self._refuses = False

    async def unready(self) -> str | None:
        """Return why the database cannot serve this version; ``None``: it can."""
        reason = await schema_unfit(schema_version(self.calls), self.budget)
        if reason is None and self._refuses and time.monotonic() - self._refused_at < UNREADY_FOR:
            return f"the database does not take events: {self._why}"
        return reason


class Writer:
    """Store events. Use it as a context manager: its flushers run for the length of the block."""

    def __init__(self, connections: Connections, *, buffer: int) -> None:
        """Let up to ``buffer`` events wait, each within the connections' budget."""
        self._connections = connections
        self._budget = connections.budget
        self._buffer = buffer
        self._shared = Lane(MAX_BATCH)
        self._alone = Lane(1)
        self._flushers: list[asyncio.Task[None]] = []
        self.metrics = IngestMetrics(lambda: self.waiting)

    @property
    def waiting(self) -> int:
        return len(self._shared) + len(self._alone)

    async def __aenter__(self) -> Self:
        # One flusher is best: batches side by side are smaller and wait for each other in the database. The second
        # takes over while a lock that one event waits for holds up the first.
        lanes = [(self._shared, 0.0), (self._shared, _PATIENCE), *[(self._alone, 0.0)] * (FLUSHERS - 2)]
        self._flushers = [asyncio.create_task(self._flush_forever(*lane)) for lane in lanes]
        return self

    async def __aexit__(self, *_: object) -> None:
        for flusher in self._flushers:
            flusher.cancel()
        await asyncio.gather(*self._flushers, return_exceptions=True)

    async def store(
        self, body: str, key: str | None, traceparent: str | None = None, request: Request | None = None
    ) -> Answer:
        """Store an event, JSON text of an object. Return after its commit, or with the reason once the budget is spent.

        Args:
            key: its natural key, by which duplicates are found; ``None``: the database derives it.
            traceparent: the span that stores it.
            request: waits for an answer to the event from then on, if one is possible.
        """
        if self.waiting >= self._buffer:
            return NotStored.FULL
        loop = asyncio.get_running_loop()
        pending = Pending(body, key, traceparent, request, loop.time(), loop.create_future())
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
                # Kept for all batches: to lend one for each took 20 microseconds of CPU time.
                async with self._connections.calls.lent() as connection:
                    while await self._flush(Intake(connection), lane, batch):
                        batch = []  # answered: a later failure must not add it again
                        batch = await lane.take(patience)
                    connection.terminate()
            except Exception as error:  # noqa: BLE001 - a flusher survives every failure of a connection
                lane.put_back(batch)
                self._connections.refused(error)
                await asyncio.sleep(_PAUSE)

    async def _flush(self, intake: Intake, lane: Lane, batch: list[Pending]) -> bool:
        """Insert a batch; answer its events, or move them. Return whether the connection is still of use."""
        started = time.perf_counter()
        failure = ""
        try:
            inserted = await self._insert(intake, batch)
        except (DatabaseUnavailable, TimeoutError) as error:
            failure = type(error).__name__
            raise
        except Exception as error:  # noqa: BLE001 - every event of the batch gets its answer
            failure = type(error).__name__
            return await self._separate(intake, lane, batch, error)
        else:
            self._connections.took()
            for pending, answer in zip(batch, inserted, strict=True):
                pending.settle(answer)
            return True
        finally:
            self.metrics.inserted(time.perf_counter() - started, failure)

    async def _insert(self, intake: Intake, batch: list[Pending]) -> list[Inserted]:
        bodies = [pending.body for pending in batch]
        traceparents = [pending.traceparent for pending in batch]
        beside = {"traceparents": traceparents, "item_keys": [pending.key for pending in batch]}
        channel = next((pending.request.channel for pending in batch if pending.request is not None), None)
        async with asyncio.timeout(self._budget):
            if channel is None:
                return await intake.insert_events(bodies, **beside)
            left = [None if pending.request is None else pending.request.left for pending in batch]
            stored = await intake.insert_requests(bodies, **beside, waits=left, channel=channel)
        for pending, (inserted, waits) in zip(batch, stored, strict=True):
            if pending.request is not None and waits:
                pending.request.stored(inserted.id)
        return [inserted for inserted, _ in stored]

    async def _separate(self, intake: Intake, lane: Lane, batch: list[Pending], error: Exception) -> bool:
        """Let each event of a batch be inserted alone; answer one that was. Return whether to keep the connection."""
        reason = _reason(error)
        if lane is self._shared or reason is None:
            self._alone.put(batch)
            return reason is not NotStored.REFUSED
        (pending,) = batch
        if reason is NotStored.UNSTORABLE and not await intake.calls.refuses_alone(pending.body):
            reason = NotStored.REFUSED
        if reason is NotStored.REFUSED:
            # Another connection may lead to another server, such as the new primary after a failover.
            try:
                await intake.takes_events()
                _logger.error("the database refuses an event and takes others", **described(error))
            except SurelaneError as worse:
                self._connections.refused(error if isinstance(worse, DatabaseUnavailable) else worse)
        pending.settle(reason)
        return reason is not NotStored.REFUSED


def _reason(error: Exception) -> NotStored | None:
    """Return why a single event was not stored; ``None``: it may be sent again at once."""
    if isinstance(error, TransientConflict):
        return None
    if getattr(error, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
        return NotStored.BLOCKED
    return NotStored.UNSTORABLE if isinstance(error, InvalidInput) else NotStored.REFUSED


def send_span(tracer: Tracer | None, key: str, destination: str) -> tuple[Span | None, str | None]:
    """Start the ``send`` span of an event, the first of its trace, linked to the HTTP request's.

    Return it if it is sampled, and the ``traceparent`` for the row. Without a tracer there is neither.
    """
    if tracer is None:
        return None, None
    traceparent = tracer.root(key)
    root = sampled(traceparent)
    if root is None:
        return None, traceparent
    request = get_current_span().get_span_context()
    attributes = messaging("send", destination) | {"messaging.message.id": key}
    links = [request] if request.is_valid else []
    span = tracer.start(f"send {destination}", SpanKind.PRODUCER, attributes, root, links=links)
    return span, traceparent_of(span)


def delivered(span: Span, retry: str | None) -> None:
    """Record the number of Slack's retry, from its header."""
    if retry is not None and retry.isascii() and retry.isdigit():
        span.set_attribute("surelane.slack.retry_num", int(retry[:9]))


def answered(span: Span, answer: Answer) -> None:
    """Record on a ``send`` span whether its event was stored."""
    if isinstance(answer, NotStored):
        failed(span, answer.name.lower())
    else:
        span.set_attribute("surelane.duplicate", answer.duplicate)
