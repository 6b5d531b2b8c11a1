"""Start the spans of a service: choose their ids, ask the sampler, and hand ended ones to the processor."""

import hashlib
from collections.abc import Sequence
from contextvars import ContextVar
from time import time_ns

from opentelemetry import trace
from opentelemetry.context import Context as OtelContext
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision, ParentBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags

from surelane_service.telemetry.spans import Shape, Span, Value

_chosen: ContextVar[SpanContext] = ContextVar("chosen")
"""The ids for the SDK's span that is about to be made."""


class _ChosenIds(IdGenerator):
    """Give the SDK's span the ids that our span has had since its start."""

    def generate_span_id(self) -> int:
        return _chosen.get().span_id

    def generate_trace_id(self) -> int:
        return _chosen.get().trace_id

    def is_trace_id_random(self) -> bool:
        return _chosen.get().trace_flags.random_trace_id


class Tracer:
    """Start a service's spans."""

    def __init__(
        self,
        provider: TracerProvider,
        processor: SpanProcessor,
        scope: InstrumentationScope,
        *,
        lean: bool = True,
    ) -> None:
        """Take the sampler, the ids and the resource of ``provider``.

        Args:
            provider: the SDK's provider that the service configured.
            processor: takes the ended spans.
            scope: the library that all spans name as their origin.
            lean: ``False`` makes every span one of the SDK's from its start, because only those keep limits.
        """
        self._sampler = provider.sampler
        self._parents_decide = isinstance(provider.sampler, ParentBased)
        self._ids = provider.id_generator
        self._processor = processor
        self._lean = lean
        self.resource: Resource = provider.resource
        self.scope = scope
        # The sampler has decided and the ids are chosen before a span becomes one of the SDK's: do neither again.
        continued = TracerProvider(
            ALWAYS_ON, self.resource, shutdown_on_exit=False, id_generator=_ChosenIds()
        )
        continued.add_span_processor(processor)
        self._sdk = continued.get_tracer(scope.name, scope.version, scope.schema_url)

    def root(self, key: str) -> SpanContext:
        """Return the remote parent of the first span of an event's trace. Its trace id follows from ``key``.

        A parent decides the sampling of its children. So ask the sampler here, as for a root span.
        """
        digest = hashlib.sha256(key.encode()).digest()
        trace_id, span_id = int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big")
        flags = TraceFlags.SAMPLED if self._sampled(trace_id, "send") else TraceFlags.DEFAULT
        return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))

    def start(
        self,
        shape: Shape,
        parent: SpanContext | None = None,
        *,
        links: Sequence[SpanContext] = (),
        attributes: dict[str, Value] | None = None,
        started: int | None = None,
    ) -> trace.Span:
        """Start a span: a child of ``parent``, or the root of a trace of its own.

        Record nothing below a parent that is not sampled. So traces stay whole with any sampler.

        Args:
            shape: the content that it shares with other spans of its sort.
            parent: the parent span.
            links: spans of other traces to link to.
            attributes: its own content. The span keeps the dictionary and changes it.
            started: nanoseconds since 1970; now by default.
        """
        if parent is not None and not parent.trace_flags.sampled:
            return NonRecordingSpan(parent)
        if parent is None:
            trace_id = self._ids.generate_trace_id()
            flags = TraceFlags.RANDOM_TRACE_ID if self._ids.is_trace_id_random() else TraceFlags.DEFAULT
        else:
            trace_id = parent.trace_id
            flags = parent.trace_flags & TraceFlags.RANDOM_TRACE_ID
        if (parent and self._parents_decide) or self._sampled(trace_id, shape.name):
            flags |= TraceFlags.SAMPLED
        span_id = self._ids.generate_span_id()
        context = SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(flags))
        if not context.trace_flags.sampled:
            return NonRecordingSpan(context)
        span = Span(self, shape, context, parent, links, attributes, started or time_ns())
        if not self._lean:
            span.full()
        return span

    def _sampled(self, trace_id: int, name: str) -> bool:
        return self._sampler.should_sample(None, trace_id, name).decision is Decision.RECORD_AND_SAMPLE

    def export(self, span: Span) -> None:
        """Pass an ended span to the processor."""
        self._processor.on_end(span)

    def full(self, span: Span) -> trace.Span:
        """Make the SDK's span that takes a span's place, with its ids and its content so far."""
        context = OtelContext()
        if span.parent is not None:
            context = trace.set_span_in_context(NonRecordingSpan(span.parent), context)
        token = _chosen.set(span.context)
        try:
            full = self._sdk.start_span(
                span.name, context, span.kind, span.attributes, span.links, start_time=span.started
            )
        finally:
            _chosen.reset(token)
        if span.failed:
            full.set_status(Status(StatusCode.ERROR))
        return full
