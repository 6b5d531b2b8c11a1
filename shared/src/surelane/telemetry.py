"""OpenTelemetry: one trace an event, whose id follows from the event's key, and the metrics behind ``/metrics``.

Configured by the standard ``OTEL_*`` variables alone. Traces are off unless an exporter or an endpoint is set, and off
costs nothing measurable. Conventions: OpenTelemetry messaging semantic conventions.
"""

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

from opentelemetry import context, metrics, trace
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.instrumentation.asyncpg import AsyncPGInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import DropAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, ParentBased
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from surelane.exporters import metric_exporter, span_exporter

SCHEMA_URL = "https://opentelemetry.io/schemas/1.37.0"
FLUSH = 5.0
"""Seconds for which a service that ends waits for a collector to take what it has not sent yet."""
_PROPAGATOR = TraceContextTextMapPropagator()


def trace_id_of(key: str) -> int:
    """The id of an event's trace: the first 16 bytes of the SHA-256 of its key, so anyone with the key can open it."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:16], "big")


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What a service configured, to be shut down (and so flushed) when it ends."""

    traces: TracerProvider | None
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
    exporter = span_exporter()
    if exporter is None:
        return Telemetry(None, meter_provider, pushed is not None)
    processor = BatchSpanProcessor(exporter)
    tracer_provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    tracer_provider.add_span_processor(processor)
    trace.set_tracer_provider(tracer_provider)
    _trace_statements(resource, processor)
    return Telemetry(tracer_provider, meter_provider, pushed is not None)


def _trace_statements(resource: Resource, processor: SpanProcessor) -> None:
    """Gives a span to each statement that belongs to one: a poll's or a batch's would be a trace of its own."""
    provider = TracerProvider(ParentBased(ALWAYS_OFF), resource, shutdown_on_exit=False)
    provider.add_span_processor(processor)
    AsyncPGInstrumentor().instrument(tracer_provider=provider)  # type: ignore[no-untyped-call]


@cache
def tracer(name: str) -> trace.Tracer:
    """The tracer of a module, with the conventions' schema pinned."""
    return trace.get_tracer(name, schema_url=SCHEMA_URL)


def root_context(key: str) -> context.Context:
    """A remote, non-recording parent that carries the trace id derived from ``key``.

    A parent decides sampling for its children, so the configured sampler is asked first, as for a root span.
    """
    digest = hashlib.sha256(key.encode()).digest()
    trace_id, span_id = int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big")
    sampled = True
    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        decision = provider.sampler.should_sample(None, trace_id, "send").decision
        sampled = decision is Decision.RECORD_AND_SAMPLE
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    parent = SpanContext(trace_id, span_id, is_remote=True, trace_flags=flags)
    return trace.set_span_in_context(NonRecordingSpan(parent), context.Context())


def unsampled(parent: context.Context) -> trace.Span | None:
    """The span that a context names if it is not sampled: whatever it is the parent of needs no span, which saves its
    cost, and keeps traces whole whatever sampler is set here.
    """
    span = trace.get_current_span(parent)
    found = span.get_span_context()
    return span if found.is_valid and not found.trace_flags.sampled else None


@contextmanager
def send_span(key: str, destination: str) -> Iterator[trace.Span]:
    """The ``send`` span of an event: the root of its trace, linked to the current span (the HTTP request's).

    Its :func:`traceparent_of` is to be stored on the row. While tracing is off, it is a span that records nothing.
    """
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        yield INVALID_SPAN
        return
    parent = root_context(key)
    if (dropped := unsampled(parent)) is not None:
        yield dropped
        return
    current = trace.get_current_span().get_span_context()
    with tracer("surelane").start_as_current_span(
        f"send {destination}",
        context=parent,
        kind=SpanKind.PRODUCER,
        links=[Link(current)] if current.is_valid else [],
        attributes={**operation("send", "send", destination), "messaging.message.id": key},
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except Exception as error:
            failed(span, type(error).__name__)
            raise


def failed(span: trace.Span, error: str) -> None:
    """Marks a span as failed. ``error`` is a type or a short word: messages may quote what people wrote."""
    span.set_attribute("error.type", error)
    span.set_status(Status(StatusCode.ERROR))


def operation(name: str, kind: str, destination: str) -> dict[str, AttributeValue]:
    """The attributes every messaging span and metric of ours has."""
    return {
        "messaging.system": "surelane",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": destination,
    }


def traceparent_of(span: trace.Span | SpanContext | None) -> str | None:
    """The W3C ``traceparent`` of a span, or ``None`` where it has no valid context."""
    found = span.get_span_context() if isinstance(span, trace.Span) else span
    if found is None or not found.is_valid:
        return None
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


def context_of(traceparent: str | None) -> context.Context | None:
    """The context a stored ``traceparent`` names; ``None`` where there is none or it is malformed."""
    if not traceparent:
        return None
    found = _PROPAGATOR.extract({"traceparent": traceparent}, context.Context())
    return found if trace.get_current_span(found).get_span_context().is_valid else None


def link_to(traceparent: str | None) -> Link | None:
    """A link to the span a stored ``traceparent`` names."""
    found = context_of(traceparent)
    return Link(trace.get_current_span(found).get_span_context()) if found is not None else None
