"""One event gives one trace over both services, whose id follows from Slack's event id."""

import hashlib

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.otlp import Receiver, receiving
from tests.processes import until
from tests.scenario import Mention, eventually, new_mention, outcomes, send
from tests.system.whole import Whole, whole


def trace_id_of(mention: Mention) -> str:
    return hashlib.sha256(mention.event_id.encode()).digest()[:16].hex()


def exporting(receiver: Receiver) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }


async def handled(running: Whole) -> Mention:
    mention = await new_mention(running.system)
    assert await send(running.system, mention) == 200
    await eventually(lambda: outcomes(running.system, [mention]), {mention.event_id: "completed"}, within=60)
    return mention


async def test_one_event_gives_one_trace_over_both_services_found_from_its_id(database: str) -> None:
    async with receiving() as receiver, whole(database, env=exporting(receiver)) as running:
        mention = await handled(running)
        trace_id = trace_id_of(mention)
        await until(
            lambda: (
                {"send", "process", "settle"} <= {found.name.split()[0] for found in receiver.trace(trace_id)}
            ),
            what="send, process and settle in one trace",
        )

        spans = {found.name.split()[0]: found for found in receiver.trace(trace_id)}
        sent, processed, settled = spans["send"], spans["process"], spans["settle"]
        assert (sent.name, sent.service) == ("send slack.app_mention", "surelane-ingest")
        assert (processed.name, processed.service) == ("process slack.app_mention", "surelane-worker")
        assert sent.span.kind == Span.SPAN_KIND_PRODUCER
        assert processed.span.kind == Span.SPAN_KIND_CONSUMER
        assert processed.span.parent_span_id == sent.span.span_id
        assert settled.service == "surelane-worker"
        assert sent.attributes["messaging.system"] == "surelane"
        assert sent.attributes["messaging.message.id"] == mention.event_id
        calls = [found for found in receiver.trace(trace_id) if found.span.kind == Span.SPAN_KIND_CLIENT]
        assert any(call.span.parent_span_id == processed.span.span_id for call in calls), (
            "the reply's HTTP call"
        )


async def test_the_send_span_links_to_the_request_and_slacks_retry_is_in_the_same_trace(
    database: str,
) -> None:
    async with receiving() as receiver, whole(database, env=exporting(receiver)) as running:
        mention = await handled(running)
        assert await send(running.system, mention) == 200
        trace_id = trace_id_of(mention)

        def sends() -> list[str]:
            return [found.name for found in receiver.trace(trace_id) if found.name.startswith("send")]

        await until(lambda: len(sends()) == 2, what="a send span for each delivery")
        requests = {
            found.span.span_id.hex() for found in receiver.spans if found.span.kind == Span.SPAN_KIND_SERVER
        }
        for found in receiver.trace(trace_id):
            if found.name.startswith("send"):
                assert found.links & requests, "the HTTP request's own trace"


async def test_no_text_of_a_message_and_no_secret_is_exported_or_logged(database: str) -> None:
    async with receiving() as receiver, whole(database, env=exporting(receiver)) as running:
        mention = await handled(running)
        await until(lambda: receiver.trace(trace_id_of(mention)), what="the trace")

    logs = "\n".join(
        [*running.ingest.output, *(line for worker in running.workers for line in worker.output)]
    )
    for marked in (mention.text, running.system.signing_secret, running.system.bot_token):
        assert marked.encode() not in receiver.exported
        assert marked not in logs
