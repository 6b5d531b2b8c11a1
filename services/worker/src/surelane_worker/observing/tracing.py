"""Make the worker's spans: receive, process and settle, by OpenTelemetry's messaging conventions.

Receive and settle are round trips to the queue: one span per trip, however many events share it. Where traces are off
this module is not used.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from json import loads

from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind

from surelane.events import Event
from surelane.trace_context import span_context_of
from surelane_service.engine import Settled
from surelane_service.telemetry.setup import shape_of
from surelane_service.telemetry.spans import Value
from surelane_service.telemetry.tracer import Tracer
from surelane_worker.observing.metrics import Metrics

MOST_LINKS = 128
"""Most links of a span, as many as the SDK keeps by default."""
MOST_OF_A_TRIP = 32
"""Most links of a round trip. Under load one carries hundreds of events, and a link costs as much as an event."""
MIXED = "events"
"""The destination of a round trip for events of several kinds."""

Attributes = dict[str, Value]


class Tracing:
    """Makes the spans of a worker."""

    def __init__(self, tracer: Tracer, *, linked: bool = False) -> None:
        """``linked``: an attempt starts a trace of its own, with a link to the one that stored the event."""
        self._tracer = tracer
        self._linked = linked

    def received(self, events: Sequence[Event], began: int) -> None:
        """Make the receive span of a claim, with links to the spans that stored the events.

        Args:
            events: the claimed ones.
            began: when the round trip began, in nanoseconds since 1970.
        """
        self._round_trip("receive", events, None, _links(events, MOST_OF_A_TRIP), began)

    def process(self, events: Sequence[Event]) -> Span:
        """Start the span around a handler: a child of the span that stored the event.

        The span of a group has a link to each event's instead. An event stored without a span begins the trace that
        its key names.
        """
        parent = self._parent(events)
        if parent is not None and not parent.trace_flags.sampled:
            return NonRecordingSpan(parent)
        return self._tracer.start(
            shape_of("process", events[0].kind, SpanKind.CONSUMER),
            parent,
            links=self._process_links(events),
            attributes=_process_attributes(events),
        )

    def _parent(self, events: Sequence[Event]) -> SpanContext | None:
        if self._linked or len(events) > 1:
            return None
        return span_context_of(events[0].traceparent) or self._tracer.root(events[0].key)

    def _process_links(self, events: Sequence[Event]) -> list[SpanContext]:
        links = _links(events) if self._linked or len(events) > 1 else []
        links += [link for event in events[:MOST_LINKS] if (link := self._replayed(event)) is not None]
        return links + [link for event in events[:MOST_LINKS] if (link := _earlier(event)) is not None]

    def _replayed(self, event: Event) -> SpanContext | None:
        """Return the span that stored the event which this one runs again, at the first attempt."""
        if event.claim > 1 or event.notes is None:
            return None
        replayed = loads(event.notes).get("replay_of") or {}
        return span_context_of(replayed.get("traceparent")) or self._tracer.root(str(replayed.get("key")))

    def settled(
        self, settles: Sequence[tuple[Event, SpanContext | None]], began: int, outcome: str, answer: Settled
    ) -> None:
        """Make the settle span of attempts with the same outcome and the same answer.

        It is a child of the attempt; several attempts are linked to it instead. Where no attempt is sampled, it makes
        none.

        Args:
            settles: each event with the span of its attempt, or ``None`` where it has none.
            began: when the round trip began, in nanoseconds since 1970.
            outcome: the outcome's name, such as ``complete``.
            answer: the database's.
        """
        sampled = [span for _, span in settles if span is not None and span.trace_flags.sampled]
        attempts = list({span.span_id: span for span in sampled}.values())
        if not attempts:
            return
        parent, links = (attempts[0], []) if len(attempts) == 1 else (None, attempts[:MOST_OF_A_TRIP])
        events = [event for event, _ in settles]
        said: Attributes = {"surelane.settle": outcome, "surelane.answer": answer.value}
        self._round_trip("settle", events, parent, links, began, said)

    def _round_trip(
        self,
        name: str,
        events: Sequence[Event],
        parent: SpanContext | None,
        links: Sequence[SpanContext],
        began: int,
        said: Attributes | None = None,
    ) -> None:
        kinds = {event.kind for event in events}
        shape = shape_of(name, kinds.pop() if len(kinds) == 1 else MIXED, SpanKind.CLIENT)
        attributes = {**_which(events), **(said or {})}
        self._tracer.start(shape, parent, links=links, attributes=attributes, started=began).end()


def now() -> int:
    """Return the nanoseconds since 1970, as spans count them."""
    return time.time_ns()


def _process_attributes(events: Sequence[Event]) -> Attributes:
    first = events[0]
    attributes = _which(events)
    attributes["surelane.attempt"] = first.attempts
    if first.group_key is not None:
        attributes["messaging.message.conversation_id"] = first.group_key
    return attributes


def _which(events: Sequence[Event]) -> Attributes:
    if len(events) == 1:
        return {"messaging.message.id": events[0].key}
    return {"messaging.batch.message_count": len(events)}


def _links(events: Sequence[Event], most: int = MOST_LINKS) -> list[SpanContext]:
    return [link for event in events[:most] if (link := span_context_of(event.traceparent)) is not None]


def _earlier(event: Event) -> SpanContext | None:
    """Return the span of the attempt before, which its error record names.

    An attempt whose worker was killed left neither a record nor a span.
    """
    if event.errors == "[]":
        return None
    latest = loads(event.errors)[-1]
    return span_context_of(latest.get("traceparent")) if isinstance(latest, dict) else None


@dataclass(frozen=True, slots=True)
class Observer:
    """The metrics and the tracing of one worker."""

    metrics: Metrics
    tracing: Tracing | None = None
