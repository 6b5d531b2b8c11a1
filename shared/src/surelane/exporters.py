"""Which exporters the standard ``OTEL_*`` variables name."""

import os
from types import ModuleType

from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter

from surelane.redaction import RedactingExporter
from surelane.span_encoder import encode_spans


def span_exporter() -> tuple[SpanExporter, bool] | None:
    """The exporter of spans, and whether it takes spans of ours; ``None``: traces are off."""
    exporter: SpanExporter
    match _named("traces"):
        case "otlp" if _protocol("traces") == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as grpc  # noqa: PLC0415 - grpc is slow to import and rarely used

            exporter, lean = grpc.OTLPSpanExporter(), _encodes_ours(grpc)
        case "otlp":
            from opentelemetry.exporter.otlp.proto.http import trace_exporter as http  # noqa: PLC0415

            exporter, lean = http.OTLPSpanExporter(), _encodes_ours(http)
        case "console":
            exporter, lean = ConsoleSpanExporter(), False
        case _:
            return None
    return RedactingExporter(exporter), lean


def _encodes_ours(exporter: ModuleType) -> bool:
    """Has an exporter of the SDK's encode with our encoder, where that can be: it has no parameter for it.

    Not where variables set limits, which only the SDK's spans keep.
    """
    limited = any(name.startswith("OTEL_") and name.endswith("_LIMIT") for name in os.environ)
    if limited or "encode_spans" not in vars(exporter):
        return False
    vars(exporter).update(encode_spans=encode_spans)
    return True


def metric_exporter() -> MetricExporter | None:
    """What metrics are pushed by; ``None``: they are not."""
    if _named("metrics") != "otlp":
        return None
    if _protocol("metrics") == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as Grpc  # noqa: PLC0415

        return Grpc()
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as Http  # noqa: PLC0415

    return Http()


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
