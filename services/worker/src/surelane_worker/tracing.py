"""The worker's spans: receive, process and settle, by the messaging conventions. Used only while tracing is on.

Receive and settle are round trips to the queue: one span each, however many events share the trip.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from json import loads

from opentelemetry import context as otel_context
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, set_span_in_context
from opentelemetry.util.types import AttributeValue

from surelane.events import Event, Settled
from surelane.telemetry import context_of, link_to, operation, root_context, tracer, unsampled

MOST_LINKS = 128
"""As many as the SDK keeps."""
MOST_OF_A_TRIP = 32
"""Links of a round trip at most: under load one carries hundreds of events, and a link is as dear as handling one."""
MIXED = "events"
"""The destination of a round trip for events of several kinds."""

Attributes = dict[str, AttributeValue]


class Tracing:
    """Makes spans of what the worker does with events."""

    def __init__(self, *, linked: bool = False) -> None:
        """``linked``: handling starts a trace of its own, linked to the one that stored the event."""
        self._linked = linked
        self._tracer = tracer("surelane_worker")

    def received(self, events: Sequence[Event], began: int) -> None:
        """One receive span for a claim that brought events, linked to those that stored them.

        Args:
            events: what was claimed.
            began: nanoseconds since 1970.
        """
        links = _links(events, MOST_OF_A_TRIP)
        self._round_trip("receive", events, otel_context.Context(), links, began)

    @contextmanager
    def process(self, events: Sequence[Event]) -> Iterator[Span]:
        """The span around a handler: child of the span that stored the event; of a group, linked to each event's.

        What was stored without a span begins the trace that its key names.
        """
        parent = self._parent(events)
        span = unsampled(parent) or self._tracer.start_span(
            f"process {events[0].kind}",
            parent,
            SpanKind.CONSUMER,
            _process_attributes(events),
            self._process_links(events),
        )
        token = otel_context.attach(set_span_in_context(span, parent))
        try:
            yield span
        finally:
            otel_context.detach(token)
            span.end()

    def _parent(self, events: Sequence[Event]) -> otel_context.Context:
        if self._linked or len(events) > 1:
            return otel_context.Context()
        return context_of(events[0].traceparent) or root_context(events[0].key)

    def _process_links(self, events: Sequence[Event]) -> list[Link]:
        links = _links(events) if self._linked or len(events) > 1 else []
        return links + [link for event in events[:MOST_LINKS] if (link := _earlier(event)) is not None]

    def settled(
        self, settles: Sequence[tuple[Event, SpanContext | None]], began: int, sort: str, answer: Settled
    ) -> None:
        """One settle span for outcomes of one sort that the database answered alike: child of the attempt they came
        from, or, where there are several, linked to them. Attempts that are not sampled have none.

        Args:
            settles: each event, and the span of its attempt; ``None`` where none was made.
            began: nanoseconds since 1970.
            sort: what was settled: ``completion``, ``failure``, ...
            answer: what the database said.
        """
        sampled = [span for _, span in settles if span is not None and span.trace_flags.sampled]
        attempts = list({span.span_id: span for span in sampled}.values())
        if not attempts:
            return
        parent, links = otel_context.Context(), [Link(span) for span in attempts[:MOST_OF_A_TRIP]]
        if len(attempts) == 1:
            parent, links = set_span_in_context(NonRecordingSpan(attempts[0]), parent), []
        events = [event for event, _ in settles]
        said: Attributes = {"surelane.settle": sort, "surelane.answer": answer.value}
        self._round_trip("settle", events, parent, links, began, said)

    def _round_trip(
        self,
        name: str,
        events: Sequence[Event],
        parent: otel_context.Context,
        links: Sequence[Link],
        began: int,
        said: Attributes | None = None,
    ) -> None:
        kinds = {event.kind for event in events}
        destination = kinds.pop() if len(kinds) == 1 else MIXED
        attributes = {**operation(name, name, destination), **_which(events), **(said or {})}
        self._tracer.start_span(
            f"{name} {destination}", parent, SpanKind.CLIENT, attributes, links, start_time=began
        ).end()


def now() -> int:
    """Nanoseconds since 1970, as spans count them."""
    return time.time_ns()


def _process_attributes(events: Sequence[Event]) -> Attributes:
    first = events[0]
    attributes = operation("process", "process", first.kind) | _which(events)
    attributes["surelane.attempt"] = first.attempts
    if first.group_key is not None:
        attributes["messaging.message.conversation_id"] = first.group_key
    return attributes


def _which(events: Sequence[Event]) -> Attributes:
    if len(events) == 1:
        return {"messaging.message.id": events[0].key}
    return {"messaging.batch.message_count": len(events)}


def _links(events: Sequence[Event], most: int = MOST_LINKS) -> list[Link]:
    return [link for event in events[:most] if (link := link_to(event.traceparent)) is not None]


def _earlier(event: Event) -> Link | None:
    """A link to the attempt before, whose span the error record of a failed attempt names.

    An attempt that ended with its worker left neither a record nor a span.
    """
    if event.errors == "[]":
        return None
    latest = loads(event.errors)[-1]
    return link_to(latest.get("traceparent")) if isinstance(latest, dict) else None
