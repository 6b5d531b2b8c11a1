"""What spans must not say, taken out on their way to the exporter, whichever library or handler made them.

Exceptions keep their type: their messages, and the stack traces that end in them, quote what people wrote and the data
of a statement. URLs lose their query (an OAuth ``code``) and, where the host is one of Slack's for hooks, their path (a
``response_url`` is a secret).
"""

from collections.abc import Mapping, Sequence
from typing import cast
from urllib.parse import urlsplit

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Status
from opentelemetry.util.types import AttributeValue

from surelane.spans import Span

URLS = ("http.url", "http.target", "url.full")
QUERY = "url.query"
MESSAGES = ("exception.message", "exception.stacktrace")


class RedactingExporter(SpanExporter):
    """Passes spans on to an exporter, redacted."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan | Span]) -> SpanExportResult:
        """Exports what may be said of the spans. Ours say only what we let them."""
        told = [span if isinstance(span, Span) else redacted(span) for span in spans]
        return self._exporter.export(cast("list[ReadableSpan]", told))

    def shutdown(self) -> None:
        """Shuts down the exporter behind it."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Flushes the exporter behind it."""
        return self._exporter.force_flush(timeout_millis)


def redacted(span: ReadableSpan) -> ReadableSpan:
    """The span itself where there is nothing to hide, which is the rule; else a copy without it."""
    attributes = span.attributes or {}
    has_url = any(name in attributes for name in (*URLS, QUERY))
    if not has_url and not span.events and span.status.description is None:
        return span
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=_without_secrets(attributes) if has_url else attributes,
        events=[_type_only(event) for event in span.events],
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _type_only(event: Event) -> Event:
    kept = {name: value for name, value in (event.attributes or {}).items() if name not in MESSAGES}
    return Event(event.name, kept, event.timestamp)


def _without_secrets(attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    return {
        name: plain_url(str(value)) if name in URLS else value
        for name, value in attributes.items()
        if name != QUERY
    }


def plain_url(url: str) -> str:
    """A URL or its path without user, query and fragment; without its path as well where that is the secret."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    path = "" if host.startswith("hooks.") else parts.path
    return parts._replace(netloc=host, path=path, query="", fragment="").geturl()
