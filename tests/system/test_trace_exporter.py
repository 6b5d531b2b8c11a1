"""Export with collectors that are away, hang or fail; sampling; the flush at the end."""

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median

import pytest

from surelane_service.telemetry.setup import FLUSH
from tests.otlp import HTTP, PROTOCOLS
from tests.processes import Service, free_port, until
from tests.scenario import Mention, eventually, new_mention, outcomes, send
from tests.system.traced import INGEST, WORKER, traced
from tests.system.whole import Whole, whole

pytestmark = pytest.mark.telemetry

ANSWER_WITHIN = 3.0
"""Seconds after which Slack gives up."""
EVENTS = 30
DROPPED = "Queue full, dropping Span."
SECRET = "marked-path"
DECIDED = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"}


COLLECTORS = {
    "away": None,
    "hanging": b"",
    "failing": b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
}


@asynccontextmanager
async def collecting(sort: str) -> AsyncIterator[int]:
    """Accept every connection, and give the answer of this sort of collector or none. Yield the port."""
    if (answer := COLLECTORS[sort]) is None:
        yield free_port()  # no process listens on it
        return
    held: list[asyncio.StreamWriter] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)
        if answer:
            await reader.read(1024)
            writer.write(answer)
            await writer.drain()
            writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in held:
            writer.transport.abort()


def complaints(service: Service) -> list[str]:
    """Return the log lines of a service about exporting."""
    lines = [json.loads(line) for line in service.output if line.startswith("{")]
    return [line["event"] for line in lines if line["logger"].startswith("opentelemetry")]


async def answered(running: Whole, mention: Mention) -> float:
    """Send a mention; return the seconds until its 200."""
    began = time.monotonic()
    assert await send(running.system, mention) == 200
    return time.monotonic() - began


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("collector", COLLECTORS)
async def test_bad_collector_costs_no_event_and_no_time_but_a_line_a_minute(
    database: str, collector: str, protocol: str
) -> None:
    async with collecting(collector) as port:
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}/{SECRET}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_BSP_SCHEDULE_DELAY": "20",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "8",
            "OTEL_BSP_MAX_QUEUE_SIZE": "16",
        }
        async with whole(database, env=env) as running:
            services = [running.ingest, *running.workers]
            mentions = [await new_mention(running.system) for _ in range(EVENTS)]
            took = [await answered(running, mention) for mention in mentions]
            completed = {mention.event_id: "completed" for mention in mentions}
            await eventually(lambda: outcomes(running.system, mentions), completed, within=60)
            await until(lambda: all(complaints(each) for each in services), what="a complaint")
            if collector == "hanging":
                await until(lambda: all(DROPPED in complaints(each) for each in services), what=DROPPED)
    assert median(took) < ANSWER_WITHIN
    for each in services:
        lines = complaints(each)
        assert len(lines) <= 3, lines
        assert len(set(lines)) == len(lines), "one line of a sort a minute"
        assert SECRET not in "\n".join(each.output)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_spans_are_flushed_when_services_are_stopped(database: str, protocol: str) -> None:
    async with traced(database, protocol, env={"OTEL_BSP_SCHEDULE_DELAY": "3600000"}) as system:
        mention = await system.handled()
        assert not system.receiver.spans
    assert {span.service for span in system.of(mention.event_id)} == {INGEST, WORKER}
    operations = {span.name.partition(" ")[0] for span in system.of(mention.event_id)}
    assert {"send", "process", "settle"} <= operations


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_collector_that_hangs_holds_up_the_end_for_a_few_seconds_at_most(
    database: str, protocol: str
) -> None:
    async with collecting("hanging") as port:
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        }
        async with whole(database, env=env) as running:
            mention = await new_mention(running.system)
            await answered(running, mention)
            await eventually(
                lambda: outcomes(running.system, [mention]), {mention.event_id: "completed"}, within=60
            )
            began = time.monotonic()
            children = [each.child for each in (running.ingest, *running.workers)]
            codes = await asyncio.gather(*(child.stop(signal.SIGTERM, 60) for child in children))
    assert codes == [0, 0]
    assert time.monotonic() - began < FLUSH + 15


async def test_a_decision_about_sampling_holds_for_all_services_and_for_a_whole_workflow(
    database: str,
) -> None:
    """A workflow's children and its handlers' own spans follow its first event, not their own ids."""
    async with traced(database, HTTP, env=DECIDED) as system:
        mentions = [await new_mention(system.running.system) for _ in range(40)]
        for mention in mentions:
            assert await send(system.running.system, mention) == 200
        plans = [await system.query("""select agent.enqueue('plan', '{"parts": 1}')""") for _ in range(20)]
        own = [await system.query("""select agent.enqueue('own-span', '{}')""") for _ in range(20)]
        ended, count = len(mentions) + 3 * len(plans) + len(own), "select count(*) from agent.event_hist"
        await eventually(lambda: system.query(count), str(ended), within=60)
    traces = [system.of(mention.event_id) for mention in mentions]
    services = {frozenset(span.service for span in spans) for spans in traces}
    assert services == {frozenset(), frozenset({INGEST, WORKER})}
    for spans in traces:
        names = {span.name.partition(" ")[0] for span in spans}
        assert not spans or {"send", "process", "POST"} <= names
    whole_plan = {"process plan": 1, "process subtask": 1, "process synthesize": 1}
    shapes = [Counter(span.name for span in system.of(key) if span.name in whole_plan) for key in plans]
    assert {tuple(shape.items()) for shape in shapes} == {(), tuple(whole_plan.items())}
    found = {span.trace_id for span in system.receiver.spans if span.name.startswith("process ")}
    keys = (*plans, *own, *(mention.event_id for mention in mentions))
    assert len(found) == sum(1 for key in keys if system.of(key)), "no trace but these events'"
    assert {span.trace_id for span in system.receiver.named("a span of its own")} <= found
