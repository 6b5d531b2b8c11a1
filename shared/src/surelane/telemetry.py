"""OpenTelemetry: one trace an event, whose id follows from the event's key, and the metrics behind ``/metrics``.

Configured by the standard ``OTEL_*`` variables alone. Traces are off unless an exporter or an endpoint is set, and off
costs nothing measurable. Conventions: OpenTelemetry messaging semantic conventions.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry import context, metrics, trace
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

SCHEMA_URL = "https://opentelemetry.io/schemas/1.37.0"
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

    def shutdown(self) -> None:
        """Flushes what is buffered and stops the exporters."""
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
    readers: list[MetricReader] = [PrometheusMetricReader()]
    if _exporter("metrics") == "otlp":
        readers.append(PeriodicExportingMetricReader(_otlp_metrics()))
    meter_provider = MeterProvider(metric_readers=readers, resource=resource)
    metrics.set_meter_provider(meter_provider)
    pushes = len(readers) > 1
    exporter = _span_exporter()
    if exporter is None:
        return Telemetry(None, meter_provider, pushes)
    tracer_provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    tracer_provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(tracer_provider)
    return Telemetry(tracer_provider, meter_provider, pushes)


def tracer(name: str) -> trace.Tracer:
    """The tracer of a module, with the conventions' schema pinned."""
    return trace.get_tracer(name, schema_url=SCHEMA_URL)


def _exporter(signal: str) -> str:
    """Which exporter a signal uses: by name, or OTLP where an endpoint is given, else none."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return "none"
    named = os.environ.get(f"OTEL_{signal.upper()}_EXPORTER")
    if named:
        return named.strip().lower()
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
    return "otlp" if any(os.environ.get(name) for name in endpoints) else "none"


def _protocol(signal: str) -> str:
    specific = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL")
    return specific or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "http/protobuf"


def _span_exporter() -> SpanExporter | None:
    match _exporter("traces"):
        case "otlp" if _protocol("traces") == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc  # noqa: PLC0415 - grpc is slow to import and rarely used

            return Grpc()
        case "otlp":
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http  # noqa: PLC0415

            return Http()
        case "console":
            return ConsoleSpanExporter()
        case _:
            return None


def _otlp_metrics() -> MetricExporter:
    if _protocol("metrics") == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as Grpc  # noqa: PLC0415

        return Grpc()
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as Http  # noqa: PLC0415

    return Http()


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


@contextmanager
def send_span(key: str, destination: str, attributes: dict[str, AttributeValue]) -> Iterator[str | None]:
    """The ``send`` span of an event: the root of its trace, linked to the current span (the HTTP request's).

    Yields:
        The span's ``traceparent``, to be stored on the row; ``None`` while tracing is off.
    """
    current = trace.get_current_span().get_span_context()
    links = [Link(current)] if current.is_valid else []
    with tracer("surelane").start_as_current_span(
        f"send {destination}",
        context=root_context(key),
        kind=SpanKind.PRODUCER,
        links=links,
        attributes={**operation("send", "send", destination), "messaging.message.id": key, **attributes},
    ) as span:
        yield traceparent_of(span) if isinstance(trace.get_tracer_provider(), TracerProvider) else None


def operation(name: str, kind: str, destination: str) -> dict[str, AttributeValue]:
    """The attributes every messaging span and metric of ours has."""
    return {
        "messaging.system": "surelane",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": destination,
    }


def traceparent_of(span: trace.Span) -> str | None:
    """The W3C ``traceparent`` of a span, or ``None`` where it has no valid context."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(span))
    return carrier.get("traceparent")


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
