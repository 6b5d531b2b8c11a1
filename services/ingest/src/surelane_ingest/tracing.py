"""Spans of the HTTP requests, by the official instrumentation, and what a ``send`` span says of its event."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.instrumentation.aiohttp_server import AioHttpServerInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span

from surelane.telemetry import failed
from surelane_ingest.lane import Answer, NotStored

RETRY = "X-Slack-Retry-Num"


@contextmanager
def instrumented(traces: TracerProvider | None) -> Iterator[None]:
    """Gives a span to every request of the applications that are built inside the block.

    Build the private port's application outside it: probes would drown everything else.
    """
    if traces is None:
        yield
        return
    instrumentor = AioHttpServerInstrumentor()
    instrumentor.instrument(tracer_provider=traces)
    try:
        yield
    finally:
        instrumentor.uninstrument()


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
