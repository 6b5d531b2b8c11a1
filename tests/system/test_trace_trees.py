"""The whole tree of spans of one event. Ingest and two workers run as processes and export to one receiver."""

from collections.abc import AsyncIterator

import pytest

from surelane.calls import Connection
from surelane_service.telemetry.setup import SCHEMA_URL
from tests.otlp import GRPC, HTTP, Received
from tests.processes import until
from tests.scenario import new_mention, send
from tests.system.traced import INGEST, WORKER, Traced, direct_message, named, traced
from tests.system.worker import claimed


@pytest.fixture(scope="module")
async def system(shared_database: str) -> AsyncIterator[Traced]:
    async with traced(shared_database, GRPC) as running:
        yield running


def assert_about(span: Received, expected: dict[str, object]) -> None:
    """Check some of a span's attributes. ``None``: it lacks one."""
    assert {name: span.attributes.get(name) for name in expected} == expected


def assert_messaging(span: Received, operation: str, destination: str) -> None:
    assert (span.name, span.schema) == (f"{operation} {destination}", SCHEMA_URL)
    kinds: dict[str, object] = {f"messaging.operation.{part}": operation for part in ("name", "type")}
    about = {"messaging.system": "surelane", "messaging.destination.name": destination}
    assert_about(span, kinds | about)


async def test_first_try_has_a_trace_that_is_linked_to_the_requests_and_the_claims(system: Traced) -> None:
    mention = await system.handled()
    spans = await system.spans(mention.event_id, send=1, process=1, settle=1)

    (sent,), (processed,), (settled,) = (named(spans, name) for name in ("send", "process", "settle"))
    (call,) = [span for span in spans if span not in (sent, processed, settled)]
    for span, operation, kind, service in (
        (sent, "send", "producer", INGEST),
        (processed, "process", "consumer", WORKER),
        (settled, "settle", "client", WORKER),
    ):
        assert_messaging(span, operation, "slack.app_mention")
        assert (span.kind, span.service) == (kind, service)
        assert span.attributes["messaging.message.id"] == mention.event_id
        assert not span.failed
    stored = await system.query(
        f"select traceparent from agent.event_hist where item_key = '{mention.event_id}'"
    )
    assert stored == f"00-{sent.trace_id}-{sent.id}-01", "sampled, and the trace id is not a random one"
    assert processed.parent == sent.id
    assert settled.parent == processed.id
    assert (call.kind, call.service, call.parent, call.name) == ("client", WORKER, processed.id, "POST")
    assert call.attributes["http.url"].endswith("/api/chat.postMessage")
    assert_about(
        processed,
        {
            "surelane.attempt": 1,
            "surelane.outcome": "complete",
            "messaging.message.conversation_id": f"T0SURELANE:C0GENERAL1:{mention.thread_ts}",
        },
    )
    assert_about(settled, {"surelane.settle": "complete", "surelane.answer": "done"})

    (link,) = sent.links
    await until(lambda: any(span.id == link for span in system.receiver.spans), what="the request's span")
    (request,) = [span for span in system.receiver.spans if span.id == link]
    assert (request.name, request.service) == ("POST /slack/events", INGEST)
    assert (request.parent, request.trace_id == sent.trace_id) == ("", False)
    assert request.attributes == {
        "http.request.method": "POST",
        "http.route": "/slack/events",
        "url.path": "/slack/events",
        "url.scheme": "http",
        "http.response.status_code": 200,
    }

    def claims() -> list[Received]:
        return [span for span in named(system.receiver.spans, "receive") if sent.id in span.links]

    await until(claims, what="the receive span")
    (received,) = claims()
    assert_messaging(received, "receive", "slack.app_mention")
    assert (received.kind, received.service, received.parent) == ("client", WORKER, "")


async def test_slacks_retry_is_a_second_send_and_a_new_run_a_trace_linked_to_the_first(
    system: Traced,
) -> None:
    mention = await system.handled()
    assert await send(system.running.system, mention, retry=1) == 200
    spans = await system.spans(mention.event_id, send=2, process=1, settle=1)
    first, second = named(spans, "send")
    (processed,) = named(spans, "process")
    assert_about(first, {"surelane.duplicate": False, "surelane.slack.retry_num": None})
    assert_about(second, {"surelane.duplicate": True, "surelane.slack.retry_num": 1})
    assert processed.parent == first.id
    key = await system.query(
        "select (agent.rerun_as_new((agent.find_events($$" + mention.event_id + "$$)), null, null)).key"
    )
    (again,) = named(await system.spans(key, process=1, settle=1), "process")
    assert again.links == {first.id}
    assert again.trace_id != first.trace_id


async def test_workflow_is_one_trace_with_its_statements_and_those_of_polls_are_in_none(
    system: Traced,
) -> None:
    key = await system.query("""select agent.enqueue('plan', '{"parts": 2}')""")
    # One settle span may be of both parts, and is then in a trace of its own.
    spans = await system.spans(key, process=4)
    (plan,) = [span for span in spans if span.name == "process plan"]
    parts = [span for span in spans if span.name == "process subtask"]
    (synthesis,) = [span for span in spans if span.name == "process synthesize"]
    assert len(parts) == 2
    assert {span.parent for span in (*parts, synthesis)} == {plan.id}
    assert all(span.kind == "consumer" for span in (plan, *parts, synthesis))
    assert plan.attributes["surelane.outcome"] == "fan_out"

    def settles() -> list[Received]:
        return [span for span in system.of(key) if span.name == "settle plan"]

    await until(settles, what="the settle span")
    assert [span.parent for span in settles()] == [plan.id]

    def statements() -> list[Received]:
        return [span for span in system.of(key) if span.name == "select"]

    await until(statements, what="the handler's statement")
    # The settler sends the plan's jobs: its settle span covers that round trip.
    (statement,) = statements()
    assert str(statement.attributes["db.statement"]).endswith("from agent.children($1::int8)")
    assert statement.parent == synthesis.id
    traces = {span.trace_id for span in system.receiver.spans if span.name != "select"}
    assert {span.trace_id for span in system.receiver.named("select")} <= traces


async def test_retry_after_a_failure_is_a_span_linked_to_the_one_before(system: Traced) -> None:
    mention = await system.handled("fail-first")
    spans = await system.spans(mention.event_id, send=1, process=2, settle=2)
    (sent,), (first, second) = named(spans, "send"), named(spans, "process")
    failure, completion = named(spans, "settle")
    assert first.parent == second.parent == sent.id
    assert (first.links, second.links) == (set(), {first.id})
    assert first.failed
    assert_about(first, {"error.type": "RuntimeError", "surelane.outcome": "fail"})
    assert not second.failed
    assert [span.attributes["surelane.attempt"] for span in (first, second)] == [1, 2]
    assert [span.attributes["surelane.settle"] for span in (failure, completion)] == ["fail", "complete"]
    assert [failure.parent, completion.parent] == [first.id, second.id]


async def test_group_of_three_is_one_span_linked_to_each_send(system: Traced) -> None:
    messages = [direct_message(f"part {number}", "D0TOGETHER") for number in range(3)]
    await system.query("select agent.pause_kind('slack.message.im')")
    for message in messages:
        assert await send(system.running.system, message) == 200
    await system.query("select agent.resume_kind('slack.message.im')")
    await system.ended(*messages)
    sends = [(await system.spans(message.event_id, send=1))[0] for message in messages]
    kinds = [f"{operation} slack.message.im" for operation in ("process", "settle")]
    await until(lambda: all(map(system.receiver.named, kinds)), what="the group's spans")
    (processed,), (settled,) = map(system.receiver.named, kinds)
    assert_messaging(processed, "process", "slack.message.im")
    assert (processed.parent, processed.links) == ("", {span.id for span in sends})
    assert_about(
        processed,
        {"messaging.batch.message_count": 3, "messaging.message.conversation_id": "T0SURELANE:D0TOGETHER"},
    )
    assert settled.parent == processed.id
    assert settled.attributes["messaging.batch.message_count"] == 3


async def test_attempt_whose_lease_is_lost_fails(database: str, connection: Connection) -> None:
    async with traced(database, HTTP, workers=1, SURELANE_LEASE="3s") as system:
        identity = await system.query("""select agent.enqueue('sleep', '{"seconds": 60}')""")
        await claimed(connection, int(identity))
        await system.query(
            "update agent.event set claimed = claimed || now(), claimed_by = 'another', vt = now() + interval '1h'"
            " returning id"
        )
        (processed,) = await system.spans(identity, process=1)
    assert processed.failed
    assert_about(processed, {"error.type": "lease_lost", "surelane.outcome": "release"})


async def test_event_that_is_not_stored_is_a_send_that_failed(database: str, connection: Connection) -> None:
    async with traced(database, HTTP, workers=0) as system:
        mention = await new_mention(system.running.system)
        async with connection.transaction():
            await connection.execute("lock table agent.event in access exclusive mode")
            assert await send(system.running.system, mention) == 503
        (sent,) = await system.spans(mention.event_id, send=1)
    assert sent.failed
    assert sent.attributes["error.type"] == "blocked"
