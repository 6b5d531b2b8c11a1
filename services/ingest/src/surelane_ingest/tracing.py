"""Spans of the HTTP requests themselves, by the official instrumentation, less what must not be recorded."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.instrumentation.aiohttp_server import AioHttpServerInstrumentor
from opentelemetry.sdk.trace import Span, SpanProcessor, TracerProvider

_URLS = ("http.url", "http.target", "url.full")


class _StripQueries(SpanProcessor):
    """Cuts the query off every URL a span starts with: queries carry OAuth codes and whatever else callers
    put there.
    """

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002 - the SDK's signature
        attributes = span.attributes or {}
        for name in _URLS:
            url = attributes.get(name)
            if isinstance(url, str) and "?" in url:
                span.set_attribute(name, url.partition("?")[0])
        if attributes.get("url.query"):
            span.set_attribute("url.query", "")


@contextmanager
def instrumented(traces: TracerProvider | None) -> Iterator[None]:
    """Gives a span to every request of the applications that are built inside the block.

    Build the private port's application outside it: probes would drown everything else.
    """
    if traces is None:
        yield
        return
    traces.add_span_processor(_StripQueries())
    instrumentor = AioHttpServerInstrumentor()
    instrumentor.instrument(tracer_provider=traces)
    try:
        yield
    finally:
        instrumentor.uninstrument()
