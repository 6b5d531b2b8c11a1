"""Start a service's spans by OpenTelemetry's SDK.

A span costs as much as an event. So the sampler decides, by the trace's id alone, before anything else is built.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, StatusCode
from opentelemetry.util.types import AttributeValue

from surelane.trace_context import span_context_of

NO_PARENT = Context()
_RATIO = re.compile(r"(?:ParentBased\{root:)?TraceIdRatioBased\{([\d.e-]+)\}")
_trace_id: ContextVar[int] = ContextVar("trace_id", default=0)
"""The id of the trace that is about to begin; 0: a random one."""


class Ids(RandomIdGenerator):
    """Choose random ids. A trace of :meth:`Tracer.new_trace` keeps the id about which the sampler was asked."""

    def generate_trace_id(self) -> int:
        return _trace_id.get() or super().generate_trace_id()


class Tracer:
    """Start a service's own spans."""

    def __init__(self, provider: TracerProvider, tracer: trace.Tracer) -> None:
        """``provider`` has the sampler and the :class:`Ids`; ``tracer`` is one of its tracers."""
        self._sampler = provider.sampler
        # The SDK compares the same numbers, but asking it twice took 8 % of the CPU time that storing an event takes.
        ratio = _RATIO.match(provider.sampler.get_description())
        self._bound = TraceIdRatioBased(float(ratio[1])).bound if ratio else None
        """A sampler by ratio takes a trace below it, by the low 64 bits of its id; ``None``: it is another sampler."""
        self._ids = provider.id_generator
        self._tracer = tracer

    def root(self, key: str) -> str:
        """Return the ``traceparent`` above the first span of an event's trace, with the sampler's decision.

        Its ids follow from the event's key: see :func:`surelane.trace_context.trace_id_of`.
        """
        digest = sha256(key.encode()).hexdigest()
        flags = "01" if self._samples(int(digest[:32], 16)) else "00"
        return f"00-{digest[:32]}-{digest[32:48]}-{flags}"

    def new_trace(self) -> int:
        """Return the id of a new trace, or 0 if it is not sampled."""
        trace_id = self._ids.generate_trace_id()
        return trace_id if self._samples(trace_id) else 0

    def _samples(self, trace_id: int) -> bool:
        if self._bound is not None:
            return trace_id & TraceIdRatioBased.TRACE_ID_LIMIT < self._bound
        # Name the context: by default the sampler follows the current span, which may belong to another trace.
        return self._sampler.should_sample(NO_PARENT, trace_id, "").decision is Decision.RECORD_AND_SAMPLE

    def start(
        self,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, AttributeValue],
        above: SpanContext | int,
        *,
        links: Sequence[SpanContext] = (),
        started: int | None = None,
    ) -> Span:
        """Start a span below ``above``, or as the root of the trace with that id.

        ``links``: spans of other traces. ``started``: nanoseconds since 1970; now by default.
        """
        context, token = NO_PARENT, _trace_id.set(above if isinstance(above, int) else 0)
        if isinstance(above, SpanContext):
            context = trace.set_span_in_context(NonRecordingSpan(above), context)
        try:
            return self._tracer.start_span(
                name, context, kind, attributes, [Link(each) for each in links], started
            )
        finally:
            _trace_id.reset(token)


def sampled(traceparent: str | None) -> SpanContext | None:
    """Return the span that a ``traceparent`` names, if it is sampled. Below another one, begin no span."""
    if traceparent is None or traceparent.endswith("-00"):
        return None  # nearly every event, where one in a hundred is sampled
    found = span_context_of(traceparent)
    return found if found is not None and found.trace_flags.sampled else None


@contextmanager
def within(span: Span) -> Iterator[None]:
    """Make a span the current one for the length of a block, and end it there. An exception marks it as failed."""
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield
        except Exception as error:
            failed(span, type(error).__name__)
            raise


def failed(span: Span, error: str) -> None:
    """Mark a span as failed. ``error`` is a type or a short word, never a message, which may quote people."""
    span.set_attribute("error.type", error)
    span.set_status(StatusCode.ERROR)
