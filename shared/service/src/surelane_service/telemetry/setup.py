"""Set up OpenTelemetry: one trace per event, whose id follows from the event's key, and the metrics at ``/metrics``.

The standard ``OTEL_*`` variables alone configure it. Traces are off unless an exporter or an endpoint is set. Off, they
cost nothing measurable. Names follow OpenTelemetry's semantic conventions for messaging.
"""

import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import metrics, trace
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import DropAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import Status
from opentelemetry.util.types import AttributeValue

from surelane_service.telemetry.spans import Ids, Tracer

SCHEMA_URL = "https://opentelemetry.io/schemas/1.37.0"
Observe = Callable[[CallbackOptions], Iterable[Observation]]
FLUSH = 5.0
"""Seconds for which a stopping service waits until the collector has taken its last spans."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The telemetry of a service. Shut it down when the service stops, to send the buffered spans."""

    traces: TracerProvider | None
    tracer: Tracer | None
    """Starts the service's own spans; ``None`` if traces are off."""
    metrics: MeterProvider | None  # an earlier service of this process has it
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
        if self.metrics is not None:
            self.metrics.shutdown()


def configure_telemetry(service: str, version: str, *, statements: bool = False) -> Telemetry:
    """Install the global tracer and meter providers that the ``OTEL_*`` variables ask for.

    Of several services in one process, the first one's are global. Each has its own ``tracer``.

    ``statements``: make spans of SQL statements below other spans. Each then costs more, also without a span.
    """
    resource = Resource.create(
        {"service.name": os.environ.get("OTEL_SERVICE_NAME", service), "service.version": version}
    )
    pushed: MetricExporter | None = _exporter("metrics", ("otlp",))
    meter_provider: MeterProvider | None = None
    if not isinstance(metrics.get_meter_provider(), MeterProvider):
        readers: list[MetricReader] = [PrometheusMetricReader(scope_info_enabled=False)]
        if pushed is not None:
            readers.append(PeriodicExportingMetricReader(pushed))
        # The HTTP instrumentations count by the Host header, so a caller could create any number of time series.
        views = [View(instrument_name="http.*", aggregation=DropAggregation())]
        meter_provider = MeterProvider(readers, resource, shutdown_on_exit=False, views=views)
        metrics.set_meter_provider(meter_provider)
    exporter: SpanExporter | None = _exporter("traces", ("otlp", "console"))
    if exporter is None:
        return Telemetry(None, None, meter_provider, pushed is not None)
    processor = BatchSpanProcessor(RedactingExporter(exporter))
    tracer_provider = TracerProvider(resource=resource, shutdown_on_exit=False, id_generator=Ids())
    tracer_provider.add_span_processor(processor)
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        trace.set_tracer_provider(tracer_provider)
    if statements:
        from opentelemetry.instrumentation.asyncpg import AsyncPGInstrumentor  # noqa: PLC0415 - slow to import, for traces alone

        # Below a span only. A statement of a poll or a batch would otherwise start a trace of its own.
        below = TracerProvider(ParentBased(ALWAYS_OFF), resource, shutdown_on_exit=False)
        below.add_span_processor(processor)
        AsyncPGInstrumentor().instrument(tracer_provider=below)  # type: ignore[no-untyped-call]
    tracer = Tracer(tracer_provider, tracer_provider.get_tracer("surelane", version, schema_url=SCHEMA_URL))
    return Telemetry(tracer_provider, tracer, meter_provider, pushed is not None)


def messaging(operation: str, destination: str | None = None) -> dict[str, str]:
    """Return the attributes that all spans and metrics about messages have; ``None``: of several destinations."""
    names = {"messaging.operation.name": operation, "messaging.operation.type": operation}
    to = {} if destination is None else {"messaging.destination.name": destination}
    return {"messaging.system": "surelane"} | names | to


def counted(counts: Mapping[Any, float], *names: str, **fixed: str) -> Observe:
    """Return a callback that observes a counter. Its keys are the value, or values, of the attributes ``names``."""

    def observe(_: CallbackOptions) -> Iterable[Observation]:
        for key, number in counts.items():
            values = (key,) if isinstance(key, str) else key
            yield Observation(number, fixed | dict(zip(names, values, strict=True)))

    return observe


def single(value: Callable[[], float]) -> Observe:
    """Return a callback that observes one number."""
    return lambda _: [Observation(value())]


def _exporter(signal: str, known: Collection[str]) -> Any:  # noqa: ANN401 - of any signal
    """Load the exporter of a signal, and no other one: each imports large libraries. ``None``: the signal is off."""
    if (name := _named(signal)) not in known:
        return None
    if name == "otlp":
        specific = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL")
        protocol = specific or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        name += "_proto_grpc" if protocol == "grpc" else "_proto_http"
    (found,) = entry_points(group=f"opentelemetry_{signal}_exporter", name=name)
    return found.load()()


def _named(signal: str) -> str:
    """Return the name of a signal's exporter: the one that is set, OTLP if only an endpoint is set, else ``none``."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return "none"
    named = os.environ.get(f"OTEL_{signal.upper()}_EXPORTER")
    if named:
        return named.strip().lower()
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
    return "otlp" if any(os.environ.get(name) for name in endpoints) else "none"


URLS = ("http.url", "http.target", "url.full")
QUERY = "url.query"
MESSAGES = ("exception.message", "exception.stacktrace")


class RedactingExporter(SpanExporter):
    """Pass all spans on to an exporter without private content, also those of libraries and handlers.

    Exceptions keep their type only: messages and stack traces quote what people wrote. URLs lose their query, which may
    hold an OAuth ``code``. URLs of Slack's hook hosts lose their path too, because a ``response_url`` is a secret.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._exporter.export([redacted(span) for span in spans])

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def redacted(span: ReadableSpan) -> ReadableSpan:
    """Return the span itself if it has no private part, as most do; else a copy without the private parts."""
    attributes = span.attributes or {}
    has_url = any(name in attributes for name in (*URLS, QUERY))
    if not has_url and not span.events and span.status.description is None:
        return span
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=_without_secrets(attributes) if has_url else attributes,
        events=[_without_message(event) for event in span.events],
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _without_message(event: Event) -> Event:
    kept = {name: value for name, value in (event.attributes or {}).items() if name not in MESSAGES}
    return Event(event.name, kept, event.timestamp)


def _without_secrets(attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    return {
        name: plain_url(str(value)) if name in URLS else value
        for name, value in attributes.items()
        if name != QUERY
    }


def plain_url(url: str) -> str:
    """Return a URL without user, query and fragment, and without its path if the path is a secret."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    path = "" if host.startswith("hooks.") else parts.path
    return parts._replace(netloc=host, path=path, query="", fragment="").geturl()
