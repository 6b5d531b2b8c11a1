"""Receive OTLP over HTTP and gRPC. Parse the real protocol and keep all spans and metrics."""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from aiohttp import web
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from surelane_service.probes import serving

HTTP, GRPC = "http/protobuf", "grpc"
PROTOCOLS = (HTTP, GRPC)


@dataclass(frozen=True)
class Received:
    """A received span, with its service and the schema of its names."""

    service: str
    schema: str
    span: Span

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def kind(self) -> str:
        """The kind: ``producer``, ``consumer``, ``client``, …"""
        name: str = Span.SpanKind.Name(self.span.kind)
        return name.removeprefix("SPAN_KIND_").lower()

    @property
    def trace_id(self) -> str:
        return self.span.trace_id.hex()

    @property
    def id(self) -> str:
        return self.span.span_id.hex()

    @property
    def parent(self) -> str:
        """The id of its parent; empty if it has none."""
        return self.span.parent_span_id.hex()

    @property
    def attributes(self) -> dict[str, Any]:
        return _values(self.span.attributes)

    @property
    def links(self) -> set[str]:
        """The ids of the linked spans."""
        return {link.span_id.hex() for link in self.span.links}

    @property
    def failed(self) -> bool:
        """Whether its status is an error."""
        return self.span.status.code == Status.STATUS_CODE_ERROR


def _values(items: Sequence[KeyValue]) -> dict[str, Any]:
    return {item.key: getattr(item.value, item.value.WhichOneof("value") or "string_value") for item in items}


@dataclass
class Receiver:
    """The spans and metrics received so far."""

    protocol: str
    endpoint: str = ""
    spans: list[Received] = field(default_factory=list)
    exported: bytearray = field(default_factory=bytearray)
    """All received bytes of spans and metrics."""
    metrics: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The names of the metrics of each service."""
    requests: list[str] = field(default_factory=list)
    """The sorts of the exports: ``traces`` or ``metrics``."""

    @property
    def env(self) -> dict[str, str]:
        """The standard variables that make a service export to it without delay."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": self.protocol,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }

    def trace(self, trace_id: str) -> list[Received]:
        """Return the spans of one trace, in the order of their starts."""
        return _sorted(received for received in self.spans if received.trace_id == trace_id)

    def named(self, name: str) -> list[Received]:
        """Return the spans of a name, in the order of their starts."""
        return _sorted(received for received in self.spans if received.name == name)

    def take(self, sort: str, body: bytes) -> None:
        """Keep an export."""
        if sort == "traces":
            self.spans += _spans(traces.ExportTraceServiceRequest.FromString(body))
        else:
            for resource in metrics.ExportMetricsServiceRequest.FromString(body).resource_metrics:
                service = _values(resource.resource.attributes)["service.name"]
                for scope in resource.scope_metrics:
                    self.metrics[service].update(metric.name for metric in scope.metrics)
        self.requests.append(sort)
        self.exported += body


def _sorted(spans: Iterable[Received]) -> list[Received]:
    return sorted(spans, key=lambda received: received.span.start_time_unix_nano)


def _spans(request: traces.ExportTraceServiceRequest) -> Iterator[Received]:
    for resource in request.resource_spans:
        service = _values(resource.resource.attributes)["service.name"]
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Received(service, scope.schema_url, span)


@asynccontextmanager
async def receiving(protocol: str = HTTP) -> AsyncIterator[Receiver]:
    """Run a receiver on a free port of 127.0.0.1."""
    receiver = Receiver(protocol)
    async with _over_grpc(receiver) if protocol == GRPC else _over_http(receiver):
        yield receiver


@asynccontextmanager
async def _over_http(receiver: Receiver) -> AsyncIterator[None]:
    async def take(request: web.Request) -> web.Response:
        receiver.take(request.match_info["sort"], await request.read())
        return web.Response(body=b"", content_type="application/x-protobuf")  # an empty message

    app = web.Application()
    app.add_routes([web.post("/v1/{sort:traces|metrics}", take)])
    async with serving(app, 0, setting="none", host="127.0.0.1") as port:
        receiver.endpoint = f"http://127.0.0.1:{port}"
        yield


@asynccontextmanager
async def _over_grpc(receiver: Receiver) -> AsyncIterator[None]:
    server = grpc.aio.server()
    for sort, name in (("traces", "trace.v1.TraceService"), ("metrics", "metrics.v1.MetricsService")):

        async def take(body: bytes, _: object, sort: str = sort) -> bytes:
            receiver.take(sort, body)
            return b""  # an empty message

        export = {"Export": grpc.unary_unary_rpc_method_handler(take)}
        service = f"opentelemetry.proto.collector.{name}"
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, export),))
    receiver.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield
    finally:
        await server.stop(grace=None)
