"""OpenTelemetry: one trace an event, whose id follows from the event's key, and the metrics behind ``/metrics``.

Configured by the standard ``OTEL_*`` variables alone. Traces are off unless an exporter or an endpoint is set, and off
costs nothing measurable. Conventions: OpenTelemetry messaging semantic conventions.
"""

import os
import re
import threading
from dataclasses import dataclass
from functools import lru_cache

from opentelemetry import metrics, trace
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.instrumentation.asyncpg import AsyncPGInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import DropAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import INVALID_SPAN, NonRecordingSpan, SpanContext, SpanKind, TraceFlags

from surelane.exporters import metric_exporter, span_exporter
from surelane.spans import Shape, Tracer, Value, running

SCHEMA_URL = "https://opentelemetry.io/schemas/1.37.0"
FLUSH = 5.0
"""Seconds for which a service that ends waits for a collector to take what it has not sent yet."""
_TRACEPARENT = re.compile(
    r"(?:00(?=.{53}$)|(?!00|ff)[0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What a service configured, to be shut down (and so flushed) when it ends."""

    traces: TracerProvider | None
    tracer: Tracer | None
    """Makes the service's own spans; ``None`` while tracing is off."""
    metrics: MeterProvider
    pushes_metrics: bool = False
    """Whether metrics also go out by OTLP, so that they must pass through the SDK."""

    def shutdown(self, within: float = FLUSH) -> None:
        """Flushes what is buffered and stops the exporters; gives up after ``within`` seconds."""
        # The SDK would wait half a minute for each; a thread that outlives the process keeps nobody waiting.
        stopping = threading.Thread(target=self._shutdown, name="telemetry-shutdown", daemon=True)
        stopping.start()
        stopping.join(within)

    def _shutdown(self) -> None:
        if self.traces is not None:
            self.traces.shutdown()
        self.metrics.shutdown()


def configure_telemetry(service: str, version: str) -> Telemetry:
    """Installs the global tracer and meter providers from the ``OTEL_*`` variables.

    Args:
        service: ``service.name`` unless ``OTEL_SERVICE_NAME`` gives another.
        version: ``service.version``.
    """
    resource = Resource.create(
        {"service.name": os.environ.get("OTEL_SERVICE_NAME", service), "service.version": version}
    )
    readers: list[MetricReader] = [PrometheusMetricReader(scope_info_enabled=False)]
    if (pushed := metric_exporter()) is not None:
        readers.append(PeriodicExportingMetricReader(pushed))
    # The HTTP instrumentations count by the Host header, of which whoever calls can send any number.
    views = [View(instrument_name="http.*", aggregation=DropAggregation())]
    meter_provider = MeterProvider(readers, resource, shutdown_on_exit=False, views=views)
    metrics.set_meter_provider(meter_provider)
    exported = span_exporter()
    if exported is None:
        return Telemetry(None, None, meter_provider, pushed is not None)
    exporter, lean = exported
    processor = BatchSpanProcessor(exporter)
    tracer_provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    tracer_provider.add_span_processor(processor)
    trace.set_tracer_provider(tracer_provider)
    _trace_statements(resource, processor)
    scope = InstrumentationScope("surelane", version, SCHEMA_URL)
    tracer = Tracer(tracer_provider, processor, scope, lean=lean)
    return Telemetry(tracer_provider, tracer, meter_provider, pushed is not None)


def _trace_statements(resource: Resource, processor: SpanProcessor) -> None:
    """Gives a span to each statement that belongs to one: a poll's or a batch's would be a trace of its own."""
    provider = TracerProvider(ParentBased(ALWAYS_OFF), resource, shutdown_on_exit=False)
    provider.add_span_processor(processor)
    AsyncPGInstrumentor().instrument(tracer_provider=provider)  # type: ignore[no-untyped-call]


def send_span(tracer: Tracer | None, key: str, destination: str) -> running:
    """A block within the ``send`` span of an event: the root of its trace, linked to the current span (the HTTP
    request's).

    Its :func:`traceparent_of` is to be stored on the row. Without a tracer it is a span that records nothing.
    """
    if tracer is None:
        return running(INVALID_SPAN)
    root = tracer.root(key)
    if not root.trace_flags.sampled:
        return running(NonRecordingSpan(root))
    request = trace.get_current_span().get_span_context()
    shape = shape_of("send", destination, SpanKind.PRODUCER)
    attributes: dict[str, Value] = {"messaging.message.id": key}
    return running(
        tracer.start(shape, root, links=[request] if request.is_valid else [], attributes=attributes)
    )


def messaging(operation: str, destination: str) -> dict[str, str]:
    """The attributes every span and metric about messages has."""
    return {
        "messaging.system": "surelane",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": destination,
    }


@lru_cache(1024)
def shape_of(operation: str, destination: str, kind: SpanKind) -> Shape:
    """What the spans of one operation on events of one kind have in common."""
    return Shape(f"{operation} {destination}", kind, messaging(operation, destination))


def traceparent_of(span: trace.Span | SpanContext | None) -> str | None:
    """The W3C ``traceparent`` of a span, or ``None`` where it has no valid context."""
    found = span.get_span_context() if isinstance(span, trace.Span) else span
    if found is None or not found.is_valid:
        return None
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


def span_context_of(traceparent: str | None) -> SpanContext | None:
    """The remote span that a W3C ``traceparent`` names; ``None`` where there is none or it is malformed.

    The SDK's propagator takes a fifth of the time in which a worker handles an event.
    """
    found = _TRACEPARENT.fullmatch(traceparent or "")
    if found is None:
        return None
    trace_id, span_id, flags = found.groups()
    named = SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags, 16)))
    return named if named.is_valid else None
