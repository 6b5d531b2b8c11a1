"""A web page in a browser that reaches a private port can read and change nothing there."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from unittest.mock import AsyncMock

import aiohttp
import pytest
from aiohttp import web

from surelane_service import probes
from surelane_service.probes import ConnectionLimit, is_private_name, private_app, serving
from tests.processes import until
from tests.system.raw_http import closed, connected, statuses


@pytest.fixture(scope="module")
def limit() -> ConnectionLimit:
    return ConnectionLimit(64, 50_000)


@pytest.fixture(scope="module")
async def url(limit: ConnectionLimit) -> AsyncIterator[str]:
    """Serve a private port with an operator's route; return its URL."""

    async def jobs(request: web.Request) -> web.Response:
        await request.read()
        if "trusted" in request.headers:
            limit.trust(request)
        return web.json_response({})

    app = private_app(AsyncMock(return_value=None), [web.route("*", "/v1/jobs", jobs)], {"queue.example.com"})
    async with serving(app, 0, setting="none", host="127.0.0.1", limit=limit) as port:
        yield f"http://127.0.0.1:{port}"


async def status(method: str, url: str, headers: Mapping[str, str]) -> int:
    async with aiohttp.ClientSession() as session, session.request(method, url, headers=headers) as response:
        return response.status


PRIVATE = (
    *("127.0.0.1:8081", "10.1.2.3", "[::1]:8081", "[fe80::1]", "::1", "localhost:8081"),
    *("ingest", "ingest:8081"),
    *("ingest.surelane.svc:8081", "ingest.surelane.svc.cluster.local", "LOCALHOST.", "x.localhost", ""),
    *("queue.example.com:8081", "Queue.Example.Com.", "127.0.0.1."),
)
PUBLIC = (
    *("evil.example", "evil.example:8081", "127.0.0.1.evil.example", "localhost.evil.example", "svc.example"),
    *("queue.example.com.evil.example", "1.2.3", "xqueue.example.com", "evil.example@127.0.0.1"),
)


def test_names_that_no_outsider_owns_are_private_and_those_that_somebody_can_point_here_are_not() -> None:
    assert [host for host in PRIVATE if not is_private_name(host, {"queue.example.com"})] == []
    assert [host for host in PUBLIC if is_private_name(host, {"queue.example.com"})] == []


async def test_a_page_under_a_rebound_name_reaches_probes_but_no_operators_route(url: str) -> None:
    for path in ("/livez", "/readyz", "/metrics"):
        assert await status("GET", url + path, {"Host": "worker-1.prod.example.com:8081"}) == 200
    for method in ("GET", "POST"):
        assert await status(method, url + "/v1/jobs", {"Host": "evil.example"}) == 403
        assert await status(method, url + "/v1/jobs", {"Host": "queue.example.com"}) == 200
        assert await status(method, url + "/v1/jobs", {}) == 200


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:9999"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
    ],
)
async def test_other_sites_are_refused(url: str, headers: Mapping[str, str], expected: int) -> None:
    for path in ("/v1/jobs", "/metrics"):
        assert await status("GET", url + path, headers) == expected


async def test_the_operators_own_pages_and_links_to_them_are_answered(url: str) -> None:
    assert await status("POST", url + "/v1/jobs", {"Origin": url}) == 200
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert [await status(method, url + "/v1/jobs", link) for method in ("GET", "POST")] == [200, 403]


HEAD = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\n"


def _fields(number: int) -> bytes:
    """Return so many headers of 2,000 bytes."""
    return b"".join(b"x-%d: %s\r\n" % (nth, bytes(1_000).hex().encode()) for nth in range(number))


async def _answered(reader: asyncio.StreamReader) -> None:
    assert statuses(await reader.readuntil(b"\r\n\r\n")) == [200]
    await reader.readexactly(2)


async def test_all_unfinished_headers_are_bounded(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest go first. So others' headers shut no one out, nor does a body, nor a connection that is trusted.

    Headers that arrive together with a whole request before them count, too.
    """
    monkeypatch.setattr(probes, "LOG_EVERY", 3600.0)  # also a slow machine then writes one line
    port = int(url.rpartition(":")[2])
    async with AsyncExitStack() as stack:
        small, body, trusted = [await stack.enter_async_context(connected(port)) for _ in range(3)]
        trusted[1].write(HEAD + b"trusted: 1\r\n\r\n")
        await _answered(trusted[0])
        trusted[1].write(HEAD + _fields(10))
        small[1].write(HEAD + b"x: 1\r\n")
        body[1].write(HEAD + b"Content-Length: 100000\r\n\r\n" + bytes(60_000))
        for before in (b"", HEAD + b"\r\n", HEAD + b"Content-Length: 9\r\n\r\n" + b"123456789"):
            large = [await stack.enter_async_context(connected(port)) for _ in range(10)]
            for _, writer in large:
                writer.write(before + HEAD + _fields(4))
            closing = asyncio.as_completed([closed(reader) for reader, _ in large], timeout=60)
            for _ in range(6):
                await next(closing)
        body[1].write(bytes(40_000))
        for _, writer in (small, trusted):
            writer.write(b"\r\n")
        for reader, _ in (small, body, trusted):
            await _answered(reader)
    assert capsys.readouterr().out.count("connections closed: too many bytes of unfinished headers") == 1


async def test_only_headers_under_way_count(url: str, limit: ConnectionLimit) -> None:
    await until(lambda: limit.unfinished == 0, what="the end of earlier connections")
    for finished in (False, True):
        async with connected(int(url.rpartition(":")[2])) as (reader, writer):
            writer.write(HEAD + _fields(4))
            await until(lambda: limit.unfinished == len(HEAD + _fields(4)), what="the headers")
            if finished:
                writer.write(b"\r\n")
                await _answered(reader)
                assert limit.unfinished == 0
        await until(lambda: limit.unfinished == 0, what="the end of the connection")


async def test_connections_that_arrive_at_once_are_bounded(url: str) -> None:
    """Many are accepted in one round of the event loop. The last one counts, too."""
    async with AsyncExitStack() as stack:
        port = int(url.rpartition(":")[2])
        clients = await asyncio.gather(*(stack.enter_async_context(connected(port)) for _ in range(100)))
        for _, writer in clients:
            writer.write(HEAD[:1])
        closing = asyncio.as_completed([closed(reader) for reader, _ in clients], timeout=60)
        for _ in range(100 - 64):
            await next(closing)
