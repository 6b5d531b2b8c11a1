"""Which exporters the standard ``OTEL_*`` variables name."""

import os

from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter

from surelane.redaction import RedactingExporter


def span_exporter() -> SpanExporter | None:
    """The exporter of spans; ``None``: traces are off."""
    exporter = _span_exporter()
    return None if exporter is None else RedactingExporter(exporter)


def metric_exporter() -> MetricExporter | None:
    """What metrics are pushed by; ``None``: they are not."""
    if _named("metrics") != "otlp":
        return None
    if _protocol("metrics") == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as Grpc  # noqa: PLC0415 - grpc is slow to import and rarely used

        return Grpc()
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as Http  # noqa: PLC0415

    return Http()


def _span_exporter() -> SpanExporter | None:
    match _named("traces"):
        case "otlp" if _protocol("traces") == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc  # noqa: PLC0415

            return Grpc()
        case "otlp":
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http  # noqa: PLC0415

            return Http()
        case "console":
            return ConsoleSpanExporter()
        case _:
            return None


def _named(signal: str) -> str:
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
