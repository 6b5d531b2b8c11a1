"""Logs of libraries say nothing secret."""

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import SpanExportResult

from surelane_service.logs import configure_logs
from tests.processes import free_port

SECRET = "a-secret"


def test_collector_that_is_away_is_logged_without_its_url(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("test")
    exporter = OTLPSpanExporter(f"http://{SECRET}:{SECRET}@127.0.0.1:{free_port()}/{SECRET}", timeout=3)
    assert exporter.export([]) is SpanExportResult.FAILURE
    logged = capsys.readouterr().out
    assert "Transient error ConnectionError encountered while exporting" in logged
    assert SECRET not in logged
