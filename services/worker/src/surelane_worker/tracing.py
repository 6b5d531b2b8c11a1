"""The worker's spans: receive, process and settle, by the messaging conventions. Used only while tracing is on."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from json import loads

from opentelemetry import context as otel_context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from surelane.events import Event, Settled
from surelane.telemetry import context_of, link_to, operation, root_context, traceparent_of, tracer

MOST_LINKS = 128


class Tracing:
    """Makes spans of what the worker does with events."""

    def __init__(self, *, linked: bool = False) -> None:
        """``linked``: handling starts a trace of its own, linked to the one that stored the event."""
        self._linked = linked
        self._tracer = tracer("surelane_worker")

    def received(self, events: Sequence[Event], began: int) -> None:
        """One receive span for a claim that brought events. ``began``: nanoseconds since 1970."""
        kinds = {event.kind for event in events}
        destination = kinds.pop() if len(kinds) == 1 else "events"
        span = self._tracer.start_span(
            f"receive {destination}",
            context=otel_context.Context(),
            kind=SpanKind.CLIENT,
            start_time=began,
            links=_links(events),
            attributes={
                **operation("receive", "receive", destination),
                "messaging.batch.message_count": len(events),
            },
        )
        span.end()

    @contextmanager
    def process(self, events: Sequence[Event]) -> Iterator[Span]:
        """The span around a handler: child of the span that stored the event; of a group, linked to each event's.

        What was stored without a span begins the trace that its key names.
        """
        first = events[0]
        alone = len(events) == 1
        links = _links(events) if self._linked or not alone else []
        links += [link for event in events[:MOST_LINKS] if (link := _earlier(event)) is not None]
        parent = None
        if alone and not self._linked:
            parent = context_of(first.traceparent) or root_context(first.key)
        with self._tracer.start_as_current_span(
            f"process {first.kind}",
            context=parent or otel_context.Context(),
            kind=SpanKind.CONSUMER,
            links=links,
            attributes=_process_attributes(events),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield span

    def settled(self, event: Event, traceparent: str | None, began: int, sort: str, answer: Settled) -> None:
        """One settle span for an event whose outcome the database took. ``began``: nanoseconds since 1970."""
        span = self._tracer.start_span(
            f"settle {event.kind}",
            context=context_of(traceparent) or context_of(event.traceparent) or otel_context.Context(),
            kind=SpanKind.CLIENT,
            start_time=began,
            attributes={
                **operation("settle", "settle", event.kind),
                "messaging.message.id": event.key,
                "surelane.settle": sort,
                "surelane.answer": answer.value,
            },
        )
        span.end()


def fail(span: Span, error: str) -> None:
    """Marks a span as failed. ``error`` is a type or a short word: messages may quote what people wrote."""
    span.set_attribute("error.type", error)
    span.set_status(Status(StatusCode.ERROR))


def traceparent(span: Span) -> str | None:
    """What a later attempt links to."""
    return traceparent_of(span)


def now() -> int:
    """Nanoseconds since 1970, as spans count them."""
    return time.time_ns()


def _process_attributes(events: Sequence[Event]) -> dict[str, AttributeValue]:
    first = events[0]
    attributes = {**operation("process", "process", first.kind), "surelane.attempt": first.attempts}
    if len(events) == 1:
        attributes["messaging.message.id"] = first.key
    else:
        attributes["messaging.batch.message_count"] = len(events)
    if first.group_key is not None:
        attributes["messaging.message.conversation_id"] = first.group_key
    return attributes


def _links(events: Sequence[Event]) -> list[Link]:
    return [link for event in events[:MOST_LINKS] if (link := link_to(event.traceparent)) is not None]


def _earlier(event: Event) -> Link | None:
    """A link to the attempt before, whose span the error record of a failed attempt names."""
    if event.attempts <= 1:
        return None
    errors = loads(event.errors)
    latest = errors[-1] if errors else None
    return link_to(latest.get("traceparent")) if isinstance(latest, dict) else None
