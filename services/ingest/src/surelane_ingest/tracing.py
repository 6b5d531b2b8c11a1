"""Make the span of each HTTP request, and describe events on their ``send`` spans.

Spans follow OpenTelemetry's HTTP semantic conventions. Of a request they carry only its method, path and status: the
caller chooses queries, headers and hosts freely, so they may hold secrets.
"""

from collections.abc import Iterable, Iterator
from functools import cache

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler
from opentelemetry.trace import Span, SpanKind

from surelane.trace_context import span_context_of
from surelane_ingest.writer import Answer, NotStored
from surelane_service.telemetry.spans import Shape, failed, running
from surelane_service.telemetry.tracer import Tracer

RETRY = "X-Slack-Retry-Num"
OTHER = "_OTHER"
MAX_PATH = 200
"""The most characters of a path on a span."""


def traced(tracer: Tracer, routes: Iterable[web.RouteDef]) -> Iterator[web.RouteDef]:
    """Wrap the handlers of ``routes``, so that each answers within a span of its own.

    This is no middleware: per route, the name and most attributes of the span are made once.
    """
    for route in routes:
        yield web.RouteDef(route.method, route.path, _within_span(tracer, route), route.kwargs)


def _within_span(tracer: Tracer, route: web.RouteDef) -> Handler:
    handler: Handler = route.handler

    @cache
    def shape_of(method: str) -> Shape:
        attributes = {"http.request.method": method, "http.route": route.path, "url.scheme": "http"}
        return Shape(f"{method} {route.path}", SpanKind.SERVER, attributes)

    async def answer(request: web.Request) -> web.StreamResponse:
        # Linked, not continued. Otherwise any client could choose the trace and have each of its requests sampled.
        remote = span_context_of(request.headers.get("traceparent"))
        shape = shape_of(request.method if request.method in hdrs.METH_ALL else OTHER)
        span = tracer.start(shape, links=[remote] if remote else [])
        if not span.is_recording():
            return await handler(request)
        span.set_attribute("url.path", _bounded(request.path))
        with running(span):
            response = await handler(request)
            _answered(span, response.status)
            return response

    return answer


def _bounded(path: str) -> str:
    """Return a path that an exporter can encode: a client may send any bytes."""
    return path[:MAX_PATH].encode("utf-8", "replace").decode()


def _answered(span: Span, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        failed(span, str(status))


def delivered(span: Span, retry: str | None) -> None:
    """Record the number of Slack's retry, from its header :data:`RETRY`."""
    if retry is not None and retry.isascii() and retry.isdigit():
        span.set_attribute("surelane.slack.retry_num", int(retry[:9]))


def answered(span: Span, answer: Answer) -> None:
    """Record on a ``send`` span whether its event was stored."""
    if isinstance(answer, NotStored):
        failed(span, answer.name.lower())
    else:
        span.set_attribute("surelane.duplicate", answer.duplicate)
