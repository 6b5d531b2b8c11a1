"""Remove private content from all spans on their way to the exporter, also from those of libraries and handlers.

Exceptions keep their type only. Their messages, and the stack traces that end in them, quote what people wrote and the
data of a statement. URLs lose their query, which may hold an OAuth ``code``. URLs of Slack's hook hosts lose their path
too, because a ``response_url`` is a secret.
"""

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Status
from opentelemetry.util.types import AttributeValue

URLS = ("http.url", "http.target", "url.full")
QUERY = "url.query"
MESSAGES = ("exception.message", "exception.stacktrace")


class RedactingExporter(SpanExporter):
    """Pass redacted spans on to an exporter."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._exporter.export([redacted(span) for span in spans])

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def redacted(span: ReadableSpan) -> ReadableSpan:
    """Return the span itself if it has no private part, as most do; else a copy without the private parts."""
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
        events=[_without_message(event) for event in span.events],
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _without_message(event: Event) -> Event:
    kept = {name: value for name, value in (event.attributes or {}).items() if name not in MESSAGES}
    return Event(event.name, kept, event.timestamp)


def _without_secrets(attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    return {
        name: plain_url(str(value)) if name in URLS else value
        for name, value in attributes.items()
        if name != QUERY
    }


def plain_url(url: str) -> str:
    """Return a URL without user, query and fragment, and without its path if the path is a secret."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    path = "" if host.startswith("hooks.") else parts.path
    return parts._replace(netloc=host, path=path, query="", fragment="").geturl()
