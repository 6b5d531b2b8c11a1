"""Set up OpenTelemetry: one trace per event, whose id follows from the event's key, and the metrics at ``/metrics``.

The standard ``OTEL_*`` variables alone configure it. Traces are off unless an exporter or an endpoint is set. Off, they
cost nothing measurable. Names follow OpenTelemetry's semantic conventions for messaging.
"""

import os
import threading
from dataclasses import dataclass
from functools import lru_cache

from opentelemetry import metrics, trace
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import DropAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import INVALID_SPAN, NonRecordingSpan, SpanKind

from surelane_service.telemetry.exporters import metric_exporter, span_exporter
from surelane_service.telemetry.spans import Shape, Value, running
from surelane_service.telemetry.tracer import Tracer

SCHEMA_URL = "https://opentelemetry.io/schemas/1.37.0"
FLUSH = 5.0
"""Seconds for which a stopping service waits until the collector has taken its last spans."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The telemetry of a service. Shut it down when the service stops, to send the buffered spans."""

    traces: TracerProvider | None
    tracer: Tracer | None
    """Starts the service's own spans; ``None`` if traces are off."""
    metrics: MeterProvider
    pushes_metrics: bool = False
    """Whether metrics are also pushed by OTLP; the SDK must then record them."""

    def shutdown(self, within: float = FLUSH) -> None:
        """Send the buffered spans and stop the exporters. Give up after ``within`` seconds."""
        # The SDK would wait half a minute for each exporter. A daemon thread does not keep the process alive.
        stopping = threading.Thread(target=self._shutdown, name="telemetry-shutdown", daemon=True)
        stopping.start()
        stopping.join(within)

    def _shutdown(self) -> None:
        if self.traces is not None:
            self.traces.shutdown()
        self.metrics.shutdown()


def configure_telemetry(service: str, version: str) -> Telemetry:
    """Install the global tracer and meter providers that the ``OTEL_*`` variables ask for.

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
    # The HTTP instrumentations count by the Host header, so a caller could create any number of time series.
    views = [View(instrument_name="http.*", aggregation=DropAggregation())]
    meter_provider = MeterProvider(readers, resource, shutdown_on_exit=False, views=views)
    metrics.set_meter_provider(meter_provider)
    exporter = span_exporter()
    if exporter is None:
        return Telemetry(None, None, meter_provider, pushed is not None)
    processor = BatchSpanProcessor(exporter)
    tracer_provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    tracer_provider.add_span_processor(processor)
    trace.set_tracer_provider(tracer_provider)
    _trace_statements(resource, processor)
    scope = InstrumentationScope("surelane", version, SCHEMA_URL)
    limited = any(name.startswith("OTEL_") and name.endswith("_LIMIT") for name in os.environ)
    tracer = Tracer(tracer_provider, processor, scope, lean=not limited)
    return Telemetry(tracer_provider, tracer, meter_provider, pushed is not None)


def _trace_statements(resource: Resource, processor: SpanProcessor) -> None:
    """Trace statements below a span only. A statement of a poll or a batch would otherwise start a trace of its own."""
    from opentelemetry.instrumentation.asyncpg import AsyncPGInstrumentor  # noqa: PLC0415 - slow to import, for traces alone

    provider = TracerProvider(ParentBased(ALWAYS_OFF), resource, shutdown_on_exit=False)
    provider.add_span_processor(processor)
    AsyncPGInstrumentor().instrument(tracer_provider=provider)  # type: ignore[no-untyped-call]


def send_span(tracer: Tracer | None, key: str, destination: str) -> running:
    """Return a block within the ``send`` span of an event: the root of its trace.

    The span links to the current one, the HTTP request's. Store its :func:`traceparent_of` on the row. Without a tracer
    it records nothing.
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
    """Return the attributes that all spans and metrics about messages have."""
    return {
        "messaging.system": "surelane",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": destination,
    }


@lru_cache(1024)
def shape_of(operation: str, destination: str, kind: SpanKind) -> Shape:
    """Return the shared content of the spans of one operation on events of one kind."""
    return Shape(f"{operation} {destination}", kind, messaging(operation, destination))
