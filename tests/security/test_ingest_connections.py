"""Clients without the secret cannot use up ingest's memory and connections, or flood its log and traces."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, suppress

import aiohttp
import psutil  # type: ignore[import-untyped]
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

from surelane_ingest import app
from surelane_ingest.app import MAX_FIELD, Refusals
from surelane_service.probes import MAX_HEADERS, UNFINISHED
from surelane_service.telemetry.spans import Tracer
from tests.databases import as_role
from tests.processes import Service, service
from tests.system.ingest_client import Slack, mention, served, settings
from tests.system.raw_http import connected, post, raw, statuses

LIMIT = 512 * 1024 * 1024
"""Ingest's memory limit in the shipped manifests."""
REQUEST = b"POST /slack/events HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="module")
async def ingest(shared_database: str) -> AsyncIterator[Service]:
    uri = as_role(shared_database, "surelane_ingest")
    async with service("surelane_ingest", settings(uri, LOG_LEVEL="info")) as running:
        yield running


@asynccontextmanager
async def crowd(port: int, count: int, request: bytes) -> AsyncIterator[Iterator[Awaitable[None]]]:
    """Send ``request`` on ``count`` connections, and leave them open. Yield once for each that the service closes.

    Let each send something: in a burst, the kernel drops silent connections (SYN cookies), and neither side notices.
    """

    async def closed() -> None:
        async with connected(port) as (reader, writer):
            with suppress(ConnectionError):
                writer.write(request)
                await reader.read()

    clients = [asyncio.create_task(closed()) for _ in range(count)]
    try:
        yield asyncio.as_completed(clients, timeout=60)
    finally:
        for client in clients:
            client.cancel()
        await asyncio.wait(clients)


async def _still_takes_events(ingest: Service) -> None:
    async with aiohttp.ClientSession() as session:
        assert (await Slack(session, ingest.url).event(mention())).status == 200


def _headers(count: int, size: int) -> bytes:
    return REQUEST + b"".join(b"x-%d: %s\r\n" % (number, b"y" * size) for number in range(count))


@pytest.mark.parametrize(
    ("request_", "kept"),
    [
        (_headers(MAX_HEADERS + 1, MAX_FIELD - 100), 0),
        (_headers(MAX_HEADERS - 4, MAX_FIELD - 100), UNFINISHED // (MAX_FIELD * (MAX_HEADERS - 8))),
    ],
    ids=["too many", "as many as may be"],
)
async def test_endless_headers_do_not_take_the_memory(ingest: Service, request_: bytes, kept: int) -> None:
    """The last line of the headers does not come, so that none is answered. A small request comes through."""
    async with connected(ingest.port) as (reader, small), crowd(ingest.port, 128, request_) as closed:
        small.write(REQUEST)
        for _ in range(128 - kept):
            await next(closed)
        await _still_takes_events(ingest)
        small.write(b"\r\n")
        assert statuses(await reader.readline()) == [401]
        assert psutil.Process(ingest.process.pid).memory_info().rss < LIMIT * 0.8
    if kept:
        assert "connections closed: too many bytes of unfinished headers" in "\n".join(ingest.output)


async def test_idle_connections_do_not_shut_others_out(ingest: Service) -> None:
    """A connection that carried a signed request is kept, with any number of others."""
    body = json.dumps(mention()).encode()
    event = post(body) + b"Content-Length: %d\r\n\r\n" % len(body) + body
    async with connected(ingest.port) as (reader, writer):
        writer.write(event)
        assert statuses(await reader.readuntil(b"\r\n\r\n")) == [200]
        async with crowd(ingest.port, 800, REQUEST[:1]) as closed, aiohttp.ClientSession() as session:
            for _ in range(800 - 512):
                await next(closed)
            async with session.get(ingest.private_url + "/readyz") as probe:
                assert probe.status == 200
            writer.write(event)
            assert statuses(await reader.readuntil(b"\r\n\r\n")) == [200]
            await _still_takes_events(ingest)


async def test_a_burst_of_refusals_is_a_few_lines(ingest: Service) -> None:
    before = len(ingest.output)
    odd = [REQUEST + b"Content-Length: 0\r\n\r\n", b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\nHost: x\r\n\r\n"]
    async with asyncio.timeout(120):
        for _ in range(10):
            answers = await asyncio.gather(
                *(raw(ingest.port, request, answers=1) for request in odd for _ in range(20))
            )
            assert all(400 <= status < 500 for answer in answers for status in statuses(answer))
            assert all(statuses(answer) for answer in answers)
    assert len(ingest.output) - before < 60  # of 600, and of three sorts one each ten seconds


async def test_refusals_are_summed(
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
    async with served(as_role(database, "surelane_ingest"), tracer=tracer) as ingest:
        body = json.dumps(mention()).encode()
        assert (await ingest.slack.post("/slack/events", body, traceparent=traceparent)).status == 200
        path = b"GET /%ff%ed%a0%80" + b"x" * 2000 + b" HTTP/1.1\r\nHost: x\r\ntraceparent: "
        answer = await raw(ingest.ingest.port, path + traceparent.encode() + b"\r\n\r\n", answers=1)
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
    own = "127.0.0.2"
    async with served(as_role(shared_database, "surelane_ingest"), private_host=own) as ingest:
        url = f"http://{own}:{ingest.ingest.private_port}/livez"
        async with ingest.slack.session.get(url) as response:
            assert response.status == 200
        with pytest.raises(aiohttp.ClientConnectorError):
            await ingest.slack.session.get(url.replace(own, "127.0.0.1"))


async def test_browsers_are_told_to_use_https_where_slack_sends_people(shared_database: str) -> None:
    uri = as_role(shared_database, "surelane_ingest")
    for slack, told in (("https://slack.com/api/", True), ("http://127.0.0.1:1/api/", False)):
        async with served(uri, slack_api_url=slack) as ingest:
            for path in ("/slack/install", "/slack/events", "/nowhere"):
                async with ingest.slack.session.get(ingest.url + path) as response:
                    assert ("Strict-Transport-Security" in response.headers) is told, path
