"""Telemetry: traces are pushed by OTLP, metrics are pulled from the private port."""
