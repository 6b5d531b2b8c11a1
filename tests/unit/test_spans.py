"""The sampler decides about an event's trace once, by its id, before anything is built; a trace is whole or absent."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import SpanKind, StatusCode

from surelane.events import Event
from surelane.trace_context import span_context_of, trace_id_of, traceparent_of
from surelane_ingest.writer import send_span
from surelane_operator.reads.timeline import trace_of
from surelane_service.engine import Settled
from surelane_service.telemetry.setup import RedactingExporter
from surelane_service.telemetry.spans import Ids, Tracer, sampled, within
from surelane_worker.observing.tracing import Tracing

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TRACE, SPAN = "a" * 32, "b" * 16
SAMPLED, UNSAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"
REMOTE = span_context_of(SAMPLED)
assert REMOTE is not None


class Asked(Sampler):
    """A sampler that keeps what it is asked."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self.trace_ids: list[int] = []

    def should_sample(
        self, parent_context: Context | None, trace_id: int, name: str, *_: Any, **__: Any
    ) -> SamplingResult:
        self.trace_ids.append(trace_id)
        return self.sampler.should_sample(parent_context, trace_id, name)

    def get_description(self) -> str:
        return "asked"


class Traced:
    """A tracer and its exported spans."""

    def __init__(self, sampler: Sampler) -> None:
        self.asked = Asked(sampler)
        self.provider = TracerProvider(self.asked, id_generator=Ids())
        self.memory = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(RedactingExporter(self.memory)))
        self.tracer = Tracer(self.provider, self.provider.get_tracer("surelane"))

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self.memory.get_finished_spans()


@pytest.fixture
def traced() -> Traced:
    return Traced(ParentBased(ALWAYS_ON))


def event(key: str, traceparent: str | None = None, *, kind: str = "mail", errors: str = "[]") -> Event:
    return Event(1, kind, NOW, 1, 1, NOW, "{}", item_key=key, traceparent=traceparent, errors=errors)


def keys(tracer: Tracer, *, are_sampled: bool) -> list[str]:
    candidates = [f"Ev{number}" for number in range(100)]
    return [key for key in candidates if (sampled(tracer.root(key)) is not None) is are_sampled]


class Given(Ids):
    """Chooses the given id."""

    def __init__(self, trace_id: int) -> None:
        self.trace_id = trace_id

    def generate_trace_id(self) -> int:
        return self.trace_id


class Unused(trace.NoOpTracer):
    """A tracer that may start nothing."""

    def start_span(self, *_: Any, **__: Any) -> trace.Span:
        raise AssertionError("a span was started")


def test_unsampled_event_asks_the_sampler_once_and_builds_nothing() -> None:
    asked = Asked(ParentBased(ALWAYS_OFF))
    tracer = Tracer(TracerProvider(asked), Unused())
    tracing = Tracing(tracer)
    span, traceparent = send_span(tracer, "Ev1", "mail")
    assert span is None
    assert traceparent == f"00-{trace_id_of('Ev1')}-{traceparent[36:52] if traceparent else ''}-00"
    assert asked.trace_ids == [int(trace_id_of("Ev1"), 16)]
    assert tracing.process([event("Ev1", traceparent)]) is None
    assert len(asked.trace_ids) == 1, "the row says it"
    assert tracing.process([event("Ev2")]) is None
    assert asked.trace_ids[1:] == [int(trace_id_of("Ev2"), 16)]
    tracing.received([event("Ev1", SAMPLED), event("Ev2", SAMPLED)], 0)
    assert tracing.process([event("Ev1", SAMPLED), event("Ev2", SAMPLED)]) is None
    assert Tracing(tracer, linked=True).process([event("Ev1", SAMPLED)]) is None
    assert len(asked.trace_ids) == 5


def test_ids_follow_from_the_key_and_so_does_the_decision() -> None:
    one, other = (Traced(ParentBased(TraceIdRatioBased(0.5))).tracer for _ in range(2))
    assert keys(one, are_sampled=True) == keys(other, are_sampled=True)
    assert 25 < len(keys(one, are_sampled=True)) < 75
    key = keys(one, are_sampled=True)[0]
    root = span_context_of(one.root(key))
    assert root is not None
    assert f"{root.trace_id:032x}" == trace_id_of(key)
    assert (root.is_remote, root.trace_flags.random_trace_id) == (True, False)


def test_the_current_span_does_not_decide_about_an_event() -> None:
    traced = Traced(ParentBased(TraceIdRatioBased(0.5)))
    expected = keys(traced.tracer, are_sampled=True)
    for current in (SAMPLED, UNSAMPLED):
        context = span_context_of(current)
        assert context is not None
        with trace.use_span(trace.NonRecordingSpan(context)):
            assert keys(traced.tracer, are_sampled=True) == expected


def test_new_trace_keeps_the_id_that_the_sampler_took() -> None:
    traced = Traced(ParentBased(TraceIdRatioBased(0.5)))
    trace_ids = [trace_id for _ in range(100) if (trace_id := traced.tracer.new_trace())]
    for trace_id in trace_ids:
        traced.tracer.start("receive mail", SpanKind.CLIENT, {}, trace_id).end()
    traced.provider.get_tracer("a library").start_span("call").end()
    own = [span for span in traced.spans if span.name != "call"]
    assert [span.context.trace_id for span in own if span.context] == trace_ids
    assert all(span.parent is None for span in traced.spans)
    assert len({span.context.trace_id for span in traced.spans if span.context}) == len(traced.spans)


@pytest.mark.parametrize(
    ("sampler", "traceparent", "recorded"),
    [
        (ParentBased(ALWAYS_ON), None, True),
        (ParentBased(ALWAYS_ON), SAMPLED, True),
        (ParentBased(ALWAYS_ON), UNSAMPLED, False),
        (ParentBased(ALWAYS_OFF), None, False),
        (ParentBased(ALWAYS_OFF), SAMPLED, True),
        (ALWAYS_OFF, SAMPLED, False),
        (ALWAYS_ON, UNSAMPLED, False),
        (TraceIdRatioBased(0.0), SAMPLED, False),
        (TraceIdRatioBased(1.0), SAMPLED, True),
    ],
)
def test_what_is_left_out_is_not_recorded(sampler: Sampler, traceparent: Any, recorded: bool) -> None:
    traced = Traced(sampler)
    span = Tracing(traced.tracer).process([event("Ev1", traceparent)])
    assert (span is not None) is recorded
    if span is not None:
        span.end()
        assert span.get_span_context().trace_id == int(TRACE if traceparent else trace_id_of("Ev1"), 16)
        (process,) = traced.spans
        assert process.parent is not None
        assert process.parent.is_remote


def test_links_lead_to_sampled_spans_alone(traced: Traced) -> None:
    tracing = Tracing(traced.tracer)
    failed = event("Ev1", SAMPLED, errors=f'[{{"traceparent": "{UNSAMPLED}"}}]')
    tracing.received([failed, event("Ev2", UNSAMPLED), event("Ev3"), event("Ev4", "malformed")], 5)
    span = tracing.process([failed])
    assert span is not None
    span.end()
    received, process = traced.spans
    assert [link.context for link in received.links] == [REMOTE]
    assert (received.start_time, process.links) == (5, ())


def test_settle_is_below_one_attempt_or_linked_to_several(traced: Traced) -> None:
    tracing = Tracing(traced.tracer)
    events = [event("Ev1"), event("Ev2", kind="call")]
    spans = [span for each in events if (span := tracing.process([each]))]
    attempts = [(each, span.get_span_context()) for each, span in zip(events, spans, strict=True)]
    tracing.settled(attempts[:1], 5, "complete", Settled.DONE)
    tracing.settled(attempts, 6, "fail", Settled.DONE)
    alone, shared = traced.spans
    assert (alone.name, alone.parent, alone.links) == ("settle mail", attempts[0][1], ())
    assert (shared.name, shared.parent) == ("settle events", None)
    assert [link.context for link in shared.links] == [span for _, span in attempts]


def crash(traced: Traced) -> None:
    """Let a handler say a secret in every way, and fail with it."""
    assert REMOTE is not None
    library = traced.provider.get_tracer("a library")
    span = traced.tracer.start("process mail", SpanKind.CONSUMER, {}, REMOTE)
    with within(span), library.start_as_current_span("call"):
        assert trace.get_current_span() is not span
        span.set_attribute("http.url", "https://example.org/x?code=secret")
        span.set_attribute("surelane.answer", "told")
        raise ValueError("secret")


def test_block_ends_its_span_and_marks_an_exception_and_no_text_is_exported(traced: Traced) -> None:
    with pytest.raises(ValueError, match="secret"):
        crash(traced)
    assert trace.get_current_span() is trace.INVALID_SPAN
    call, process = traced.spans
    assert call.parent == process.context
    assert process.status.status_code is StatusCode.ERROR
    assert process.attributes is not None
    assert (process.attributes["error.type"], process.events) == ("ValueError", ())
    exported = encode_spans(traced.spans).SerializeToString()
    assert b"secret" not in exported
    assert b"https://example.org/x" in exported
    assert b"told" in exported


def test_people_find_the_trace_that_was_sampled_or_the_keys_and_a_later_version_may_say_more() -> None:
    for told, trace_id in ((SAMPLED, TRACE), (UNSAMPLED, trace_id_of("Ev1")), (None, trace_id_of("Ev1"))):
        assert trace_of({"id": 1, "item_key": "Ev1", "traceparent": told}) == trace_id
    for given, read in ((SAMPLED, SAMPLED), (UNSAMPLED, UNSAMPLED), (f"cc-{TRACE}-{SPAN}-01-more", SAMPLED)):
        assert traceparent_of(span_context_of(given)) == read


@pytest.mark.parametrize(
    "traceparent",
    [
        *(None, "", "00", f"00-{TRACE}-{SPAN}", f"00-{TRACE}-{SPAN}-01-more", f"ff-{TRACE}-{SPAN}-01"),
        *(f"cc-{TRACE}-{SPAN}-01more", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01"),
        *(f"00-{TRACE.upper()}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01\n", f"00-{'1_' * 16}-{SPAN}-01"),
        "x" * 100_000,
    ],
)
def test_malformed_traceparent_names_nothing(traceparent: str | None) -> None:
    assert span_context_of(traceparent) is None


@pytest.mark.parametrize("ratio", [0.0, 1e-05, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("made", [TraceIdRatioBased, lambda ratio: ParentBased(TraceIdRatioBased(ratio))])
def test_decisions_about_ratios_are_the_sdks(ratio: float, made: Callable[[float], Sampler]) -> None:
    sampler = made(ratio)
    bound = TraceIdRatioBased(ratio).bound
    edges = [edge for edge in (0, bound - 1, bound, 2**64 - 1) if 0 <= edge < 2**64]
    for trace_id in (1 << 64 | edge for edge in edges):
        tracer = Tracer(TracerProvider(sampler, id_generator=Given(trace_id)), Unused())
        taken = sampler.should_sample(Context(), trace_id, "").decision is Decision.RECORD_AND_SAMPLE
        assert tracer.new_trace() == (trace_id if taken else 0)
