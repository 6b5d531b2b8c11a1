"""Make the worker's spans: receive, process and settle, by OpenTelemetry's messaging conventions.

Receive and settle are round trips to the queue: one span per trip, however many events share it.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from json import loads
from secrets import randbits

from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, use_span

from surelane.events import Event
from surelane_service.engine import Settled
from surelane_service.telemetry.setup import messaging
from surelane_service.telemetry.spans import Tracer, sampled
from surelane_worker.observing.metrics import Metrics

MOST_LINKS = 128
"""Most links of a span, as many as the SDK keeps by default."""
MOST_OF_A_TRIP = 32
"""Most links of a round trip. Under load one carries hundreds of events, and a link costs as much as an event."""
MIXED = "events"
"""The destination of a round trip for events of several kinds."""

Attributes = dict[str, str | int]


@dataclass(eq=False)
class Tracing:
    """Makes the spans of a worker."""

    tracer: Tracer
    linked: bool = False
    """An attempt starts a trace of its own, with a link to the trace that stored the event."""

    def received(self, events: Sequence[Event], began: int) -> None:
        """Make the receive span of a claim, with links to its events. ``began``: in nanoseconds since 1970."""
        if trace_id := self.tracer.new_trace():
            self._round_trip("receive", events, trace_id, _links(events, MOST_OF_A_TRIP), began)

    def process(self, events: Sequence[Event]) -> Span | None:
        """Start the span around a handler, if it is sampled: a child of the span that stored the event.

        The span of a group is linked to each event's instead. An event without a span begins the trace of its key.
        """
        first, links = events[0], []
        above: SpanContext | int | None
        if self.linked or len(events) > 1:
            above, links = self.tracer.new_trace(), _links(events)
        else:
            above = sampled(first.traceparent or self.tracer.root(first.key))
        if not above:
            return None
        for find in (self._rerun, _earlier):
            links += [link for event in events[:MOST_LINKS] if (link := find(event)) is not None]
        attributes = messaging("process", first.kind) | _which(events) | {"surelane.attempt": first.attempts}
        if first.group_key is not None:
            attributes["messaging.message.conversation_id"] = first.group_key
        span = self.tracer.start(f"process {first.kind}", SpanKind.CONSUMER, attributes, above, links=links)
        return span if span.is_recording() else None

    def _rerun(self, event: Event) -> SpanContext | None:
        """Return the span that stored the event which this one runs again, at the first attempt."""
        if event.claim > 1 or event.notes is None:
            return None
        first = loads(event.notes).get("replay_of") or {}
        return sampled(first.get("traceparent") or self.tracer.root(str(first.get("key"))))

    def settled(
        self, settles: Sequence[tuple[Event, SpanContext]], began: int, outcome: str, answer: Settled
    ) -> None:
        """Make the settle span of sampled attempts with one outcome and answer: a child of one, linked to several."""
        attempts = list({span.span_id: span for _, span in settles}.values())
        above = attempts[0] if len(attempts) == 1 else self.tracer.new_trace()
        links = attempts[:MOST_OF_A_TRIP] if len(attempts) > 1 else []
        if above:
            said: Attributes = {"surelane.settle": outcome, "surelane.answer": answer.value}
            self._round_trip("settle", [event for event, _ in settles], above, links, began, said)

    def _round_trip(
        self,
        operation: str,
        events: Sequence[Event],
        above: SpanContext | int,
        links: Sequence[SpanContext],
        began: int,
        said: Attributes | None = None,
    ) -> None:
        kinds = {event.kind for event in events}
        kind = kinds.pop() if len(kinds) == 1 else MIXED
        attributes = messaging(operation, kind) | _which(events) | (said or {})
        start = self.tracer.start
        start(f"{operation} {kind}", SpanKind.CLIENT, attributes, above, links=links, started=began).end()


def unsampled() -> AbstractContextManager[Span]:
    """Return a block within a span that is not sampled: what begins in it records nothing.

    The handlers of events that are not sampled run in it. One block serves all, because one for each costs too much.
    """
    return use_span(NonRecordingSpan(SpanContext(randbits(128), randbits(64), is_remote=False)))


def _which(events: Sequence[Event]) -> Attributes:
    if len(events) == 1:
        return {"messaging.message.id": events[0].key}
    return {"messaging.batch.message_count": len(events)}


def _links(events: Sequence[Event], most: int = MOST_LINKS) -> list[SpanContext]:
    return [link for event in events[:most] if (link := sampled(event.traceparent)) is not None]


def _earlier(event: Event) -> SpanContext | None:
    """Return the span of the attempt before, which its error record names, unless its worker was killed."""
    if event.errors == "[]":
        return None
    latest = loads(event.errors)[-1]
    return sampled(latest.get("traceparent")) if isinstance(latest, dict) else None


@dataclass(frozen=True, slots=True)
class Observer:
    """The metrics and the tracing of one worker."""

    metrics: Metrics
    tracing: Tracing | None = None
