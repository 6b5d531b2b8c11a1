"""Clients without the secret cannot use up ingest's memory and connections, or flood its log and traces."""

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import psutil  # type: ignore[import-untyped]
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

from surelane_ingest import app
from surelane_ingest.app import MAX_FIELD, MAX_HEADERS, Refusals
from surelane_ingest.ingest_settings import IngestSettings
from surelane_ingest.wiring import running
from surelane_service.service_settings import load_settings
from surelane_service.telemetry.spans import Tracer
from tests.databases import as_role
from tests.processes import Service, free_port, service
from tests.system.ingest_client import SECRET, Slack, mention, settings
from tests.system.raw_http import raw, statuses

LIMIT = 512 * 1024 * 1024
"""Ingest's memory limit in the shipped manifests."""
REQUEST = b"POST /slack/events HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="module")
async def ingest(shared_database: str) -> AsyncIterator[Service]:
    uri = as_role(shared_database, "surelane_ingest")
    async with service("surelane_ingest", settings(uri, LOG_LEVEL="info")) as running:
        yield running


async def _send(port: int, request: bytes) -> asyncio.StreamWriter | None:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        await writer.drain()
    except ConnectionError:
        return None
    return writer


async def _still_takes_events(ingest: Service) -> None:
    async with aiohttp.ClientSession() as session:
        assert (await Slack(session, ingest.url).event(mention())).status == 200


def _resident(ingest: Service) -> int:
    resident: int = psutil.Process(ingest.process.pid).memory_info().rss
    return resident


@pytest.mark.parametrize(
    ("connections", "count", "size"),
    [(300, 110, 8000), (600, MAX_HEADERS - 4, MAX_FIELD - 100)],
    ids=["too many", "as many as may be"],
)
async def test_headers_without_end_do_not_take_the_memory(
    ingest: Service, connections: int, count: int, size: int
) -> None:
    """Each connection sends headers without the last line, so that none is answered."""
    request = REQUEST + b"".join(b"x-%d: %s\r\n" % (number, b"y" * size) for number in range(count))
    writers: list[asyncio.StreamWriter | None] = []
    for _ in range(connections // 50):
        writers += await asyncio.gather(*(_send(ingest.port, request) for _ in range(50)))
        assert _resident(ingest) < LIMIT * 0.8
    await _still_takes_events(ingest)
    assert _resident(ingest) < LIMIT * 0.8
    for writer in writers:
        if writer is not None:
            writer.close()


async def test_idle_connections_do_not_shut_others_out(ingest: Service) -> None:
    """A connection that carried a signed request is kept, with any number of others."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
        slack = Slack(session, ingest.url)
        assert (await slack.event(mention())).status == 200
        writers = [await _send(ingest.port, b"") for _ in range(800)]
        async with session.get(ingest.private_url + "/readyz") as probe:
            assert probe.status == 200
        assert (await slack.event(mention())).status == 200
        await _still_takes_events(ingest)
    assert len(psutil.Process(ingest.process.pid).net_connections()) < 600
    for writer in writers:
        if writer is not None:
            writer.close()


async def test_a_burst_of_refusals_is_a_few_lines(ingest: Service) -> None:
    before = len(ingest.output)
    bursts = [
        REQUEST + b"Content-Length: 0\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
    ]
    async with asyncio.timeout(120):
        for _ in range(10):
            answers = await asyncio.gather(
                *(raw(ingest.port, request, answers=1) for request in bursts for _ in range(20))
            )
            assert all(400 <= status < 500 for answer in answers for status in statuses(answer))
            assert all(statuses(answer) for answer in answers)
    assert len(ingest.output) - before < 30


async def test_refusals_are_summed_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "INTERVAL", 0.05)
    refusals = Refusals()
    for _ in range(100):
        refusals.note("/slack/events", 401, "no")
    refusals.note("/slack/events", 413, "no")
    await asyncio.sleep(0.1)
    refusals.note("/slack/events", 401, "no")
    refusals.close()
    lines = [line for line in capsys.readouterr().out.splitlines() if "request refused" in line]
    further = [line.partition("further=")[2].partition(" ")[0] for line in lines]
    assert sum(int(number) for number in further if number) + further.count("") == 102
    assert len(lines) <= 4


async def test_a_clients_traceparent_is_linked_and_decides_nothing(shared_database: str) -> None:
    sampled = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    assert await _spans(shared_database, TracerProvider(sampler=ParentBased(ALWAYS_OFF)), sampled) == []
    found = await _spans(shared_database, TracerProvider(), sampled)
    assert {name for name, *_ in found} == {"POST /slack/events", "send slack.app_mention", "GET /{path:.*}"}
    for _, trace_id, parent, links in found:
        assert trace_id != "a" * 32
        assert parent != "b" * 16
        assert "b" * 16 in links or parent


async def _spans(
    database: str, provider: TracerProvider, traceparent: str
) -> list[tuple[str, str, str, set[str]]]:
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = Tracer(provider, provider.get_tracer("test"))
    chosen = load_settings(
        IngestSettings,
        database_url=as_role(database, "surelane_ingest"),
        signing_secret=SECRET,
        host="127.0.0.1",
        port=0,
        private_port=0,
    )
    async with running(chosen, tracer) as ingest, aiohttp.ClientSession() as session:
        slack = Slack(session, f"http://127.0.0.1:{ingest.port}")
        body = json.dumps(mention()).encode()
        assert (await slack.post("/slack/events", body, traceparent=traceparent)).status == 200
        path = b"GET /%ff%ed%a0%80" + b"x" * 2000 + b" HTTP/1.1\r\nHost: x\r\ntraceparent: "
        answer = await raw(ingest.port, path + traceparent.encode() + b"\r\n\r\n", answers=1)
        assert statuses(answer) == [404]
    return [
        (
            span.name,
            f"{span.context.trace_id:032x}",
            f"{span.parent.span_id:016x}" if span.parent else "",
            {f"{link.context.span_id:016x}" for link in span.links},
        )
        for span in exporter.get_finished_spans()
        if span.context
    ]


async def test_the_private_port_has_an_address_of_its_own(shared_database: str) -> None:
    env = settings(as_role(shared_database, "surelane_ingest"), SURELANE_PRIVATE_HOST="127.0.0.2")
    private_port = free_port()
    ready = f"http://127.0.0.2:{private_port}/readyz"
    env["SURELANE_PRIVATE_PORT"] = str(private_port)
    async with service("surelane_ingest", env, ready=ready) as ingest, aiohttp.ClientSession() as session:
        await _still_takes_events(ingest)
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(f"http://127.0.0.1:{private_port}/livez")
