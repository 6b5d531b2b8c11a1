"""The span of each HTTP request, and what a ``send`` span says of its event.

By the HTTP semantic conventions, and no more of a request than its method, its path and how it was answered: queries,
headers and hosts are whatever the caller put there.
"""

from functools import lru_cache

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware
from opentelemetry.trace import Span, SpanKind

from surelane.spans import Shape, Tracer, running
from surelane.telemetry import failed, span_context_of
from surelane_ingest.lane import Answer, NotStored

RETRY = "X-Slack-Retry-Num"
OTHER = "_OTHER"


def traced(tracer: Tracer) -> Middleware:
    """Answers each request within a span of its own, where it is sampled."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        parent = span_context_of(request.headers.get("traceparent"))
        span = tracer.start(_shape(request), parent, attributes={"url.path": request.path})
        if not span.is_recording():
            return await handler(request)
        with running(span):
            return await _answered(span, request, handler)

    return answer


def _shape(request: web.Request) -> Shape:
    method = request.method if request.method in hdrs.METH_ALL else OTHER
    resource = request.match_info.route.resource
    return _shape_of(method, "" if resource is None else resource.canonical, request.scheme)


@lru_cache(128)
def _shape_of(method: str, route: str, scheme: str) -> Shape:
    attributes = {"http.request.method": method, "http.route": route, "url.scheme": scheme}
    return Shape(f"{method} {route}", SpanKind.SERVER, attributes)


async def _answered(span: Span, request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        response = await handler(request)
    except Exception as error:
        failed(span, type(error).__name__)
        raise
    span.set_attribute("http.response.status_code", response.status)
    if response.status >= 500:
        failed(span, str(response.status))
    return response


def delivered(span: Span, retry: str | None) -> None:
    """Notes the number of Slack's retry, as Slack's header gives it."""
    if retry is not None and retry.isascii() and retry.isdigit():
        span.set_attribute("surelane.slack.retry_num", int(retry[:9]))


def answered(span: Span, answer: Answer) -> None:
    """Notes on a ``send`` span what became of its event."""
    if isinstance(answer, NotStored):
        failed(span, answer.name.lower())
    else:
        span.set_attribute("surelane.duplicate", answer.duplicate)
