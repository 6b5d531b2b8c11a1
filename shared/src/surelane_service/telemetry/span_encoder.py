"""Encode spans for OTLP: our own by their shapes, others by the SDK's encoder."""

import logging
from collections.abc import Sequence
from functools import cache

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as encode_sdk_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message
from opentelemetry.proto.trace.v1.trace_pb2 import SpanFlags, Status
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanContext, SpanKind

from surelane_service.telemetry.spans import Shape, Span, put
from surelane_service.telemetry.tracer import Tracer

KNOWN = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
REMOTE = KNOWN | SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK

# Services log one line per minute and logger below "opentelemetry".
_log = logging.getLogger("opentelemetry.exporter.surelane.encoder")


def encode_spans(spans: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
    """Encode a batch of ended spans, ours and others, as one request."""
    request = _encode_others([span for span in spans if not isinstance(span, Span)])
    own = [span for span in spans if isinstance(span, Span)]
    if own:
        request.MergeFrom(_envelope(own[0].tracer))
        messages = request.resource_spans[-1].scope_spans[0].spans
        for span in own:
            _encode(span, messages.add())
    return request


def _encode_others(spans: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
    """Encode the SDK's spans. Leave out a span that protobuf cannot hold, so that the others of the batch go out."""
    try:
        return encode_sdk_spans(spans)
    except (TypeError, ValueError) as error:
        if len(spans) == 1:
            _log.warning("a span was not exported, because it cannot be encoded: %s", type(error).__name__)
            return ExportTraceServiceRequest()
        request = ExportTraceServiceRequest()
        for span in spans:
            request.MergeFrom(_encode_others([span]))
        return request


@cache
def _envelope(tracer: Tracer) -> ExportTraceServiceRequest:
    """Encode the envelope of a tracer's spans: its resource and its scope."""
    request = encode_sdk_spans([Span(tracer, Shape("", SpanKind.INTERNAL, {}), INVALID_SPAN_CONTEXT)])
    del request.resource_spans[0].scope_spans[0].spans[:]
    return request


def _encode(span: Span, message: Message) -> None:
    context, parent = span.context, span.parent
    message.MergeFrom(span.shape.message)
    message.trace_id = context.trace_id.to_bytes(16, "big")
    message.span_id = context.span_id.to_bytes(8, "big")
    message.flags = KNOWN
    if parent is not None:
        message.parent_span_id = parent.span_id.to_bytes(8, "big")
        message.flags = _flags(parent)
    message.start_time_unix_nano = span.started
    message.end_time_unix_nano = span.ended
    put(message, span.said)
    for link in span.linked:
        message.links.add(
            trace_id=link.trace_id.to_bytes(16, "big"),
            span_id=link.span_id.to_bytes(8, "big"),
            flags=_flags(link),
        )
    if span.failed:
        message.status.code = Status.STATUS_CODE_ERROR


def _flags(other: SpanContext) -> int:
    return REMOTE if other.is_remote else KNOWN
