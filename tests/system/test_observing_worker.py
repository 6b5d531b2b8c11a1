"""The worker's spans, metrics and logs."""

import json
from collections.abc import Mapping

import aiohttp
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from surelane.calls import Connection
from surelane.queue import Queue
from surelane.trace_context import trace_id_of
from surelane_operator.changes import Changes
from surelane_operator.reads.timeline import trace_of
from surelane_service.intake import Intake
from tests.otlp import Received, Receiver, receiving
from tests.processes import until
from tests.system.slack_stand import slack_stand
from tests.system.worker import ended, enqueue, worker

SEND = "a1b2c3d4e5f60718"
"""The span that stored an event, made up."""


def tracing(receiver: Receiver) -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"}


async def store(connection: Connection, key: str, event: Mapping[str, object]) -> int:
    """Store a Slack event as ingest does while tracing is on."""
    envelope = {"type": "event_callback", "event_id": key, "team_id": "T1", "event": event}
    traceparent = f"00-{trace_id_of(key)}-{SEND}-01"
    (inserted,) = await Intake(connection).insert_events([json.dumps(envelope)], traceparents=[traceparent])
    return inserted.id


def named(spans: list[Received], name: str) -> list[Received]:
    return [span for span in spans if span.name == name]


async def test_handling_and_its_slack_calls_belong_to_the_events_trace(
    database: str, connection: Connection
) -> None:
    async with receiving() as receiver, slack_stand(connection) as slack:
        _, message = await slack.mention("a confidential word")
        await connection.execute("delete from agent.event")
        inner = {
            "type": "app_mention",
            "text": "a confidential word",
            "channel": message.channel,
            "ts": message.ts,
            "user": message.user,
        }
        async with worker(database, SLACK_API_URL=slack.api, **tracing(receiver)):
            await ended(connection, await store(connection, "EvTRACED", inner))
        trace = receiver.trace(trace_id_of("EvTRACED"))
    (process,) = named(trace, "process slack.app_mention")
    (settle,) = named(trace, "settle slack.app_mention")
    (call,) = [span for span in trace if span.attributes.get("http.url", span.attributes.get("url.full"))]
    assert process.span.kind == Span.SPAN_KIND_CONSUMER
    assert process.span.parent_span_id.hex() == SEND
    assert process.attributes["messaging.message.id"] == "EvTRACED"
    assert process.attributes["messaging.system"] == "surelane"
    assert settle.span.parent_span_id == call.span.parent_span_id == process.span.span_id
    (receive,) = named(receiver.spans, "receive slack.app_mention")
    assert receive.links == {SEND}
    assert b"confidential" not in bytes(receiver.exported)
    assert b"xoxb" not in bytes(receiver.exported)


async def test_a_workflow_is_one_trace_that_its_first_events_id_names(
    database: str, connection: Connection
) -> None:
    async with receiving() as receiver, worker(database, **tracing(receiver)):
        identity = await enqueue(connection, "plan", {"parts": 2})
        await ended(connection, identity)
        then = await connection.fetchval("select max(id) from agent.job where kind = 'synthesize'")
        await ended(connection, then)
        job = await Changes(connection).get(then)
        assert job is not None
        assert trace_of(job) == trace_id_of(str(identity))
    processed = named(receiver.trace(trace_of(job)), "process plan") + [
        span
        for kind in ("subtask", "synthesize")
        for span in named(receiver.trace(trace_of(job)), f"process {kind}")
    ]
    (plan, *rest) = processed
    assert len(rest) == 3
    assert {span.span.parent_span_id for span in rest} == {plan.span.span_id}


async def test_later_attempt_links_to_the_one_before(database: str, connection: Connection) -> None:
    async with receiving() as receiver:
        async with worker(database, **tracing(receiver)):
            await ended(connection, await enqueue(connection, "raise-once"))
        first, second = sorted(
            named(receiver.spans, "process raise-once"), key=lambda s: s.span.start_time_unix_nano
        )
    assert first.attributes["error.type"] == "RuntimeError"
    assert first.span.status.code == first.span.status.STATUS_CODE_ERROR
    assert second.links == {first.span.span_id.hex()}
    assert b"the first time" not in bytes(receiver.exported)


async def test_group_has_one_span_linked_to_all_its_events(database: str, connection: Connection) -> None:
    async with receiving() as receiver:
        async with connection.transaction():
            identities = [
                await enqueue(connection, "together", {"n": n}, group_key="T:C:1") for n in range(3)
            ]
            for n, identity in enumerate(identities):
                traceparent = f"00-{n + 1:032x}-{n + 1:016x}-01"
                await connection.execute(
                    "update agent.event set traceparent = $1 where id = $2", traceparent, identity
                )
        async with worker(database, **tracing(receiver)):
            for identity in identities:
                await ended(connection, identity)
        (process,) = named(receiver.spans, "process together")
    assert process.links == {f"{n + 1:016x}" for n in range(3)}


async def test_linked_setting_starts_a_trace_of_its_own(database: str, connection: Connection) -> None:
    async with receiving() as receiver:
        async with worker(database, SURELANE_PROCESS_SPAN="linked", **tracing(receiver)):
            inner = {"type": "app_mention", "text": "status", "ts": "1.1"}
            await ended(connection, await store(connection, "EvLINKED", inner))
        (process,) = named(receiver.spans, "process slack.app_mention")
    assert process.trace_id != trace_id_of("EvLINKED")
    assert process.links == {SEND}


async def test_response_url_stays_out_of_spans(database: str, connection: Connection) -> None:
    async with receiving() as receiver, slack_stand(connection) as slack:
        secret = slack.api.replace("/api/", "/response/secret-path?x=secret-query")
        command = {"command": "/hello", "channel_id": "C1", "trigger_id": "1.2", "response_url": secret}
        async with worker(database, SLACK_API_URL=slack.api, **tracing(receiver)):
            row = await ended(connection, await Queue(connection).insert_event(json.dumps(command)))
        assert row["reason"] == "response_refused"
        assert named(receiver.spans, "process slack.command.hello")
    assert b"secret-path" not in bytes(receiver.exported)
    assert b"secret-query" not in bytes(receiver.exported)


async def test_metrics_count_by_kind(database: str, connection: Connection) -> None:
    async with worker(database) as running:
        await ended(connection, await enqueue(connection, "echo"))
        await ended(connection, await enqueue(connection, "raise"))
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{running.private_url}/metrics") as response,
        ):
            shown = (await response.text()).splitlines()
    kind = 'messaging_destination_name="{}"'
    for metric, counted, value in (
        ("messaging_client_consumed_messages", "echo", "1.0"),
        ("messaging_client_consumed_messages", "raise", "3.0"),
        ("surelane_event_retries", "raise", "2.0"),
        ("surelane_event_failures", "raise", "3.0"),
        ("messaging_process_duration_seconds_count", "raise", "3.0"),
        ("surelane_event_finish_latency_seconds_count", "echo", "1.0"),
    ):
        lines = [line for line in shown if line.startswith(metric) and kind.format(counted) in line]
        assert [line.split()[-1] for line in lines] == [value], (metric, lines)


async def test_logs_say_what_failed_once_and_never_what_was_written(
    database: str, connection: Connection
) -> None:
    async with worker(database) as running:
        identity = await enqueue(connection, "raise", {"message": "a confidential word"}, max_attempts=1)
        await ended(connection, identity)
        await until(lambda: any("handler failed" in line for line in running.output), what="the log line")
    (line,) = [json.loads(line) for line in running.output if "handler failed" in line]
    assert (line["event_id"], line["kind"], line["attempt"], line["error"]) == (
        str(identity),
        "raise",
        1,
        "RuntimeError",
    )
    assert not any("confidential" in line for line in running.output)
