"""Our spans look like the SDK's to handlers, processors and exporters."""

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as encode_sdk_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from surelane.trace_context import span_context_of, traceparent_of
from surelane_service.telemetry.redaction import RedactingExporter
from surelane_service.telemetry.span_encoder import encode_spans
from surelane_service.telemetry.spans import Shape, Span, Value, running, trace_id_of
from surelane_service.telemetry.tracer import Tracer

SHAPE = Shape("process mail", SpanKind.CONSUMER, {"messaging.system": "surelane", "surelane.batch": False})
REMOTE = SpanContext(trace_id_of("Ev1"), 7, is_remote=True, trace_flags=TraceFlags(1))
LOCAL = SpanContext(trace_id_of("Ev1"), 8, is_remote=False, trace_flags=TraceFlags(3))
UNSAMPLED = SpanContext(trace_id_of("Ev1"), 9, is_remote=True, trace_flags=TraceFlags(0))


class Traced:
    """A tracer and its exported spans."""

    def __init__(self, sampler: Sampler | None = None, *, lean: bool = True) -> None:
        self.memory = InMemorySpanExporter()
        self.provider = TracerProvider(sampler or ParentBased(ALWAYS_ON), Resource({"service.name": "test"}))
        processor = SimpleSpanProcessor(RedactingExporter(self.memory))
        self.provider.add_span_processor(processor)
        scope = InstrumentationScope("surelane", "1.2.3", "https://example.org/schema")
        self.tracer = Tracer(self.provider, processor, scope, lean=lean)

    def encoded(self) -> ExportTraceServiceRequest:
        """Return the exported spans as a collector gets them."""
        return encode_spans(self.memory.get_finished_spans())

    def messages(self) -> list[trace_pb2.Span]:
        """Return the messages of the spans alone."""
        return [
            span
            for resource in self.encoded().resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def traced() -> Traced:
    return Traced()


def values(message: trace_pb2.Span) -> dict[str, object]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in message.attributes}


@pytest.mark.parametrize("parent", [None, REMOTE, LOCAL])
@pytest.mark.parametrize("links", [[], [REMOTE, LOCAL]])
@pytest.mark.parametrize("failed", [False, True])
def test_is_encoded_as_the_sdk_encodes_its_own(
    traced: Traced, parent: SpanContext | None, links: list[SpanContext], failed: bool
) -> None:
    attributes: dict[str, Value] = {
        "messaging.message.id": "Évènement\u0000",
        "surelane.attempt": 2**40,
        "surelane.share": 0.5,
    }
    span = traced.tracer.start(SHAPE, parent, links=links, attributes=attributes)
    if failed:
        span.set_status(StatusCode.ERROR)
    span.end()
    assert isinstance(span, Span)
    ours, read_by_the_sdk, full = traced.encoded(), encode_sdk_spans([span]), span.full()
    full.end(span.ended)
    assert isinstance(full, ReadableSpan)
    assert full.context == span.context
    theirs = encode_sdk_spans([full])
    for request in (ours, read_by_the_sdk, theirs):
        (message,) = request.resource_spans[0].scope_spans[0].spans
        if message.status == trace_pb2.Status():
            message.ClearField("status")
    assert ours == read_by_the_sdk == theirs
    assert span.to_json() == full.to_json()


def test_batch_of_both_sorts_arrives_whole(traced: Traced) -> None:
    theirs = traced.provider.get_tracer("a library")
    with running(traced.tracer.start(SHAPE, REMOTE)) as parent, theirs.start_as_current_span("call"):
        pass
    call, process = traced.messages()
    assert call.parent_span_id == process.span_id == parent.get_span_context().span_id.to_bytes(8, "big")
    assert call.trace_id == process.trace_id == REMOTE.trace_id.to_bytes(16, "big")
    assert trace.get_current_span() is trace.INVALID_SPAN


SAYS_MORE: dict[str, Callable[[trace.Span], object]] = {
    "attribute": lambda span: span.set_attribute("handler.answer", 42),
    "attributes": lambda span: span.set_attributes({"handler.answers": ["a", "b"]}),
    "event": lambda span: span.add_event("asked", {"times": 2}),
    "link": lambda span: span.add_link(REMOTE, {"why": "asked"}),
    "exception": lambda span: span.record_exception(ValueError("told")),
    "name": lambda span: span.update_name("renamed"),
    "status": lambda span: span.set_status(Status(StatusCode.OK)),
    "description": lambda span: span.set_status(StatusCode.ERROR, "told"),
    "sequence of ours": lambda span: span.set_attribute("surelane.many", (1, 2)),
}


@pytest.mark.parametrize("what", SAYS_MORE)
def test_content_that_a_handler_adds_is_exported_as_the_sdk_would(what: str) -> None:
    requests = []
    for lean in (True, False):
        traced = Traced(lean=lean)
        span = traced.tracer.start(
            SHAPE, REMOTE, links=[LOCAL], attributes={"surelane.attempt": 1}, started=10
        )
        SAYS_MORE[what](span)
        span.set_attribute("surelane.outcome", "complete")
        span.end(20)
        (message,) = traced.messages()
        message.ClearField("span_id")
        for event in message.events:
            event.ClearField("time_unix_nano")
        requests.append(message)
    assert requests[0] == requests[1]
    assert (requests[0].start_time_unix_nano, requests[0].end_time_unix_nano) == (10, 20)
    assert values(requests[0])["surelane.outcome"] == "complete"


def test_a_span_that_cannot_be_encoded_costs_no_other(traced: Traced) -> None:
    for name in ("first", "half a pair: \ud800", "last"):
        traced.provider.get_tracer("a library").start_span(name).end()
    assert {message.name for message in traced.messages()} == {"first", "last"}


def test_threads_that_say_more_keep_their_own_ids(traced: Traced) -> None:
    spans = [traced.tracer.start(SHAPE) for _ in range(200)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda span: span.add_event("asked"), spans))
    for span in spans:
        span.end()
    expected = [span.get_span_context().span_id.to_bytes(8, "big") for span in spans]
    assert [message.span_id for message in traced.messages()] == expected


def test_what_a_handler_says_is_redacted(traced: Traced) -> None:
    with running(traced.tracer.start(SHAPE)) as span:
        span.set_attribute("http.url", "https://example.org/x?code=secret")
        span.record_exception(ValueError("secret"))
    assert b"secret" not in traced.encoded().SerializeToString()


@pytest.mark.parametrize("value", ["half a pair: \ud800", 2**63])
def test_what_cannot_be_encoded_costs_the_attribute_and_nothing_else(
    traced: Traced, value: str | int
) -> None:
    span = traced.tracer.start(SHAPE, attributes={"messaging.message.id": value, "surelane.attempt": 1})
    span.set_attribute("surelane.\udcff", "x")
    span.end()
    traced.tracer.start(Shape("process \ud800", SpanKind.CONSUMER, {})).end()
    broken, other = traced.messages()
    assert values(broken) == {**SHAPE.attributes, "surelane.attempt": 1}
    assert (broken.dropped_attributes_count, other.name) == (2, "process ?")


def test_says_nothing_after_its_end(traced: Traced) -> None:
    span = traced.tracer.start(SHAPE)
    span.end()
    assert not span.is_recording()
    span.set_attribute("surelane.late", 1)
    span.end()
    (message,) = traced.messages()
    assert "surelane.late" not in values(message)


@pytest.mark.parametrize(
    ("sampler", "parent", "recorded"),
    [
        (ParentBased(ALWAYS_ON), None, True),
        (ParentBased(ALWAYS_ON), REMOTE, True),
        (ParentBased(ALWAYS_ON), UNSAMPLED, False),
        (ParentBased(ALWAYS_OFF), None, False),
        (ParentBased(ALWAYS_OFF), REMOTE, True),
        (ALWAYS_OFF, REMOTE, False),
        (ALWAYS_ON, UNSAMPLED, False),
        (TraceIdRatioBased(0.0), REMOTE, False),
        (TraceIdRatioBased(1.0), REMOTE, True),
    ],
)
def test_what_the_sampler_and_the_parent_leave_out_is_not_recorded(
    sampler: Sampler, parent: SpanContext | None, recorded: bool
) -> None:
    traced = Traced(sampler)
    span = traced.tracer.start(SHAPE, parent)
    span.end()
    assert span.get_span_context().trace_flags.sampled == recorded
    assert len(traced.messages()) == recorded
    if parent is not None:
        assert span.get_span_context().trace_id == parent.trace_id


def test_root_of_an_event_is_sampled_as_its_trace_id_says() -> None:
    traced = Traced(ParentBased(TraceIdRatioBased(0.5)))
    roots = [traced.tracer.root(f"Ev{number}") for number in range(200)]
    again = [Traced(ParentBased(TraceIdRatioBased(0.5))).tracer.root(f"Ev{number}") for number in range(200)]
    assert roots == again
    assert 60 < sum(root.trace_flags.sampled for root in roots) < 140
    assert roots[0].trace_id == trace_id_of("Ev0")
    assert roots[0].is_remote


@pytest.mark.parametrize("traceparent", [traceparent_of(REMOTE), traceparent_of(UNSAMPLED)])
def test_traceparent_is_read_back(traceparent: str) -> None:
    assert traceparent_of(span_context_of(traceparent)) == traceparent


TRACE, SPAN = "a" * 32, "b" * 16


def test_later_version_of_traceparent_may_say_more() -> None:
    assert traceparent_of(span_context_of(f"cc-{TRACE}-{SPAN}-01-more")) == f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    "traceparent",
    [
        None,
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01more",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{'1_' * 16}-{SPAN}-01",
        "x" * 100_000,
    ],
)
def test_malformed_traceparent_names_nothing(traceparent: str | None) -> None:
    assert span_context_of(traceparent) is None


PROGRAM = """
from opentelemetry.trace import SpanKind
from surelane_service.telemetry.spans import Shape, running
from surelane_service.telemetry.setup import configure_telemetry
telemetry = configure_telemetry("test", "0")
with running(telemetry.tracer.start(Shape("process mail", SpanKind.CONSUMER, {"surelane.fixed": "x" * 20}))) as span:
    span.set_attribute("surelane.own", "y" * 20)
telemetry.shutdown()
"""


def test_limits_that_variables_set_hold_for_our_spans_too() -> None:
    environment = {"OTEL_TRACES_EXPORTER": "console", "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": "5"}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    told = json.loads(run.stdout)
    assert told["name"] == "process mail"
    assert told["attributes"] == {"surelane.fixed": "xxxxx", "surelane.own": "yyyyy"}
