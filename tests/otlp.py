"""A receiver of OTLP over HTTP that parses the real protocol and keeps the spans."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass(frozen=True)
class Received:
    """A span as it arrived, with the service that sent it."""

    service: str
    span: Span

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def trace_id(self) -> str:
        return self.span.trace_id.hex()

    @property
    def attributes(self) -> dict[str, str]:
        """Its string attributes."""
        return {item.key: item.value.string_value for item in self.span.attributes}

    @property
    def links(self) -> set[str]:
        """The ids of the spans it links to."""
        return {link.span_id.hex() for link in self.span.links}


@dataclass
class Receiver:
    """What has arrived so far."""

    endpoint: str
    spans: list[Received] = field(default_factory=list)
    bytes: bytearray = field(default_factory=bytearray)

    def trace(self, trace_id: str) -> list[Received]:
        """The spans of one trace, in the order they began."""
        found = [received for received in self.spans if received.trace_id == trace_id]
        return sorted(found, key=lambda received: received.span.start_time_unix_nano)

    async def traces(self, request: web.Request) -> web.Response:
        """The handler of ``/v1/traces``."""
        body = await request.read()
        self.bytes += body
        for resource in service.ExportTraceServiceRequest.FromString(body).resource_spans:
            names = {item.key: item.value.string_value for item in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [Received(names["service.name"], span) for span in scope.spans]
        answer = service.ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=answer, content_type="application/x-protobuf")


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """Runs a receiver on a free port of 127.0.0.1."""
    receiver = Receiver("")
    app = web.Application()
    app.router.add_post("/v1/traces", receiver.traces)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield receiver
    finally:
        await runner.cleanup()
