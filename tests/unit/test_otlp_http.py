"""The exporter over OTLP/HTTP sends, tries again and logs correctly with real servers."""

import gzip
import logging
import ssl
import subprocess
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult

from surelane_service.telemetry.otlp_http import OtlpHttpExporter
from tests.needs import program
from tests.processes import free_port

FAILED, DONE = SpanExportResult.FAILURE, SpanExportResult.SUCCESS
SECRET = "a-secret"


@dataclass
class Collector:
    """A server with prepared answers, and its requests."""

    url: str = ""
    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    """The next answers: status, headers, body. After them it answers 200."""
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    asked: threading.Event = field(default_factory=threading.Event)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    collector: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.collector.requests.append((self.path, headers, body))
        answers = self.collector.answers
        status, added, content = answers.pop(0) if answers else (200, {}, b"")
        self.send_response(status)
        for name, value in {**added, "content-length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
        self.collector.asked.set()

    def log_message(self, *_: object) -> None:
        pass


Configure = Callable[..., OtlpHttpExporter]


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    handler = type("Handler", (_Handler,), {"collector": Collector()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def collector(server: ThreadingHTTPServer) -> Collector:
    found: Collector = server.RequestHandlerClass.collector  # type: ignore[attr-defined]
    found.url = f"http://127.0.0.1:{server.server_port}"
    return found


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Configure]:
    made: list[OtlpHttpExporter] = []

    def configure(**variables: str) -> OtlpHttpExporter:
        for name, value in variables.items():
            monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", value)
        made.append(OtlpHttpExporter())
        return made[-1]

    yield configure
    for each in made:
        each.shutdown()


@pytest.fixture
def spans() -> list[ReadableSpan]:
    span = TracerProvider().get_tracer("a library").start_span("call")
    span.end()
    assert isinstance(span, ReadableSpan)
    return [span]


def test_variables_say_where_and_how_spans_are_sent(
    collector: Collector, configured: Configure, spans: list[ReadableSpan]
) -> None:
    headers = "authorization=Bearer%20abc%3D, X-Tenant = ours ,,"
    assert configured(ENDPOINT=f"{collector.url}/", HEADERS=headers).export(spans) is DONE
    assert configured(TRACES_COMPRESSION="gzip").export(spans) is DONE
    assert configured(TRACES_COMPRESSION="deflate", TRACES_HEADERS="x-tenant=other").export(spans) is DONE
    assert (
        configured(TRACES_ENDPOINT=f"{collector.url}/own/path", TRACES_COMPRESSION="rar").export(spans)
        is DONE
    )
    plain, zipped, deflated, own = collector.requests
    assert (plain[0], own[0]) == ("/v1/traces", "/own/path")
    assert plain[1]["authorization"] == "Bearer abc="
    assert [each[1].get("x-tenant") for each in collector.requests] == ["ours", "ours", "other", "other"]
    assert {each[1]["content-type"] for each in collector.requests} == {"application/x-protobuf"}
    assert [each[1].get("content-encoding") for each in collector.requests] == [None, "gzip", "deflate", None]
    bodies = [plain[2], gzip.decompress(zipped[2]), zlib.decompress(deflated[2]), own[2]]
    for body in bodies:
        sent = ExportTraceServiceRequest.FromString(body)
        assert sent.resource_spans[0].scope_spans[0].spans[0].name == "call"


@pytest.mark.parametrize("status", [429, 502, 503, 504])
@pytest.mark.parametrize("after", ["0", formatdate(0, usegmt=True)])
def test_a_busy_collector_is_asked_again_when_it_says(
    collector: Collector, configured: Configure, spans: list[ReadableSpan], status: int, after: str
) -> None:
    collector.answers = [(status, {"retry-after": after}, b"")] * 2
    assert configured(ENDPOINT=collector.url).export(spans) is DONE
    assert len({body for _, _, body in collector.requests}) == 1
    assert len(collector.requests) == 3


@pytest.mark.parametrize(
    "answer",
    [
        (400, {"retry-after": "0"}, b""),
        (401, {}, b""),
        (500, {"retry-after": "0"}, b""),
        (307, {"location": "/elsewhere", "retry-after": "0"}, b""),
        (503, {"retry-after": "11"}, b""),
        (503, {"retry-after": "9" * 400}, b""),
    ],
)
def test_a_refused_batch_and_a_pause_past_the_timeout_are_given_up(
    collector: Collector,
    configured: Configure,
    spans: list[ReadableSpan],
    caplog: pytest.LogCaptureFixture,
    answer: tuple[int, dict[str, str], bytes],
) -> None:
    collector.answers = [answer]
    assert configured(ENDPOINT=collector.url).export(spans) is FAILED
    assert len(collector.requests) == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"1 spans were not exported: status {answer[0]}"
    ]


def test_a_stop_ends_the_pause_before_the_next_try(
    collector: Collector, configured: Configure, spans: list[ReadableSpan]
) -> None:
    collector.answers = [(503, {"retry-after": "3000"}, b"")]
    exporter = configured(ENDPOINT=collector.url, TIMEOUT="3600")
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(exporter.export, spans)
        assert collector.asked.wait(60)
        exporter.shutdown()
        assert result.result(60) is FAILED
    assert exporter.export(spans) is FAILED
    assert len(collector.requests) == 1


def test_nothing_of_a_request_is_logged(
    collector: Collector,
    configured: Configure,
    spans: list[ReadableSpan],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "opentelemetry")
    told = ExportTraceServiceResponse(
        partial_success=ExportTracePartialSuccess(rejected_spans=1, error_message=SECRET)
    ).SerializeToString()
    collector.answers = [(400, {}, SECRET.encode()), (200, {}, told), (200, {}, b"\xff")]
    for _ in range(3):
        configured(ENDPOINT=collector.url, HEADERS=f"authorization={SECRET}").export(spans)
    away = f"http://{SECRET}:{SECRET}@127.0.0.1:{free_port()}/{SECRET}?key={SECRET}"
    for endpoint in (away, f"{SECRET}://x"):
        assert configured(TRACES_ENDPOINT=endpoint, TIMEOUT="0.5").export(spans) is FAILED
    assert configured(HEADERS=f"a={SECRET}%0Ab", TIMEOUT=SECRET).export(spans) is FAILED
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("opentelemetry")]
    assert "the collector rejected 1 spans" in messages
    assert "1 spans were not exported: ConnectionError" in messages
    assert not any(SECRET in message for message in messages)


def test_certificates_are_checked_and_shown(
    server: ThreadingHTTPServer,
    collector: Collector,
    configured: Configure,
    spans: list[ReadableSpan],
    tmp_path: Path,
) -> None:
    certificate, key = str(tmp_path / "certificate.pem"), str(tmp_path / "key.pem")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = [
        program("openssl"),
        "req",
        "-x509",
        "-nodes",
        "-newkey",
        "rsa:2048",
        "-keyout",
        key,
        "-out",
        certificate,
    ]
    subprocess.run([*made, *subject], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    variables = {"ENDPOINT": collector.url.replace("http:", "https:"), "TIMEOUT": "1"}
    assert configured(**variables).export(spans) is FAILED
    assert configured(CERTIFICATE=certificate).export(spans) is FAILED
    shown = {"CLIENT_CERTIFICATE": certificate, "CLIENT_KEY": key, "TIMEOUT": "10"}
    assert configured(**shown).export(spans) is DONE
    assert len(collector.requests) == 1
