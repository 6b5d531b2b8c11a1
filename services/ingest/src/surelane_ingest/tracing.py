"""The span of each HTTP request, and what a ``send`` span says of its event.

By the HTTP semantic conventions, and no more of a request than its method, its path and how it was answered: queries,
headers and hosts are whatever the caller put there.
"""

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, use_span

from surelane.telemetry import context_of, failed, tracer
from surelane_ingest.lane import Answer, NotStored

RETRY = "X-Slack-Retry-Num"
OTHER = "_OTHER"


@web.middleware
async def traced(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers a request within a span of its own, where it is sampled. Only while tracing is on."""
    method = request.method if request.method in hdrs.METH_ALL else OTHER
    resource = request.match_info.route.resource
    route = "" if resource is None else resource.canonical
    parent = context_of(request.headers.get("traceparent")) or Context()
    span = tracer("surelane_ingest").start_span(f"{method} {route}", parent, SpanKind.SERVER)
    if not span.is_recording():
        return await handler(request)
    span.set_attributes(
        {
            "http.request.method": method,
            "http.route": route,
            "url.path": request.path,
            "url.scheme": request.scheme,
        }
    )
    with use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        return await _answered(span, request, handler)


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
