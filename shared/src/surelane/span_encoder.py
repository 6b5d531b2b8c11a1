"""Encodes spans for OTLP: our own by their shapes, the SDK's by the SDK's encoder."""

from collections.abc import Sequence
from functools import cache

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as encode_sdk_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message
from opentelemetry.proto.trace.v1.trace_pb2 import SpanFlags, Status
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanContext, SpanKind

from surelane.spans import Shape, Span, Tracer, put

KNOWN = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
REMOTE = KNOWN | SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK


def encode_spans(spans: Sequence[ReadableSpan | Span]) -> ExportTraceServiceRequest:
    """A batch of ended spans of either sort as one request."""
    request = encode_sdk_spans([span for span in spans if not isinstance(span, Span)])
    own = [span for span in spans if isinstance(span, Span)]
    if own:
        request.MergeFrom(_envelope(own[0].tracer))
        messages = request.resource_spans[-1].scope_spans[0].spans
        for span in own:
            _encode(span, messages.add())
    return request


@cache
def _envelope(tracer: Tracer) -> ExportTraceServiceRequest:
    """What is around a tracer's spans: its resource and its scope."""
    any_span = Span(tracer, Shape("", SpanKind.INTERNAL, {}), INVALID_SPAN_CONTEXT)
    request = encode_sdk_spans([any_span.full()])
    del request.resource_spans[0].scope_spans[0].spans[:]
    return request


def _encode(span: Span, message: Message) -> None:
    message.MergeFrom(span.shape.message)
    message.trace_id = span.context.trace_id.to_bytes(16, "big")
    message.span_id = span.context.span_id.to_bytes(8, "big")
    message.flags = KNOWN
    if span.parent is not None:
        message.parent_span_id = span.parent.span_id.to_bytes(8, "big")
        message.flags = _flags(span.parent)
    message.start_time_unix_nano = span.started
    message.end_time_unix_nano = span.ended
    put(message, span.attributes)
    for link in span.links:
        message.links.add(
            trace_id=link.trace_id.to_bytes(16, "big"),
            span_id=link.span_id.to_bytes(8, "big"),
            flags=_flags(link),
        )
    if span.failed:
        message.status.code = Status.STATUS_CODE_ERROR


def _flags(other: SpanContext) -> int:
    return REMOTE if other.is_remote else KNOWN
