"""Choose the exporters that the standard ``OTEL_*`` variables name."""

import os

from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter

from surelane_service.telemetry.redaction import RedactingExporter


def span_exporter() -> SpanExporter | None:
    """Return the exporter of spans, or ``None`` if traces are off."""
    exporter: SpanExporter
    match _named("traces"):
        case "otlp" if _protocol("traces") == "grpc":
            # Each exporter imports large libraries: import the one in use alone.
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc  # noqa: PLC0415

            exporter = Grpc()
        case "otlp":
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http  # noqa: PLC0415

            exporter = Http()
        case "console":
            exporter = ConsoleSpanExporter()
        case _:
            return None
    return RedactingExporter(exporter)


def metric_exporter() -> MetricExporter | None:
    """Return the exporter that pushes metrics, or ``None`` if they are not pushed."""
    if _named("metrics") != "otlp":
        return None
    if _protocol("metrics") == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as Grpc  # noqa: PLC0415

        return Grpc()
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as Http  # noqa: PLC0415

    return Http()


def _named(signal: str) -> str:
    """Return the name of a signal's exporter: the one that is set, OTLP if only an endpoint is set, else ``none``."""
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
