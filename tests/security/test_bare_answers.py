"""No answer names a version, and none quotes a request that is not HTTP: on ingest's ports and on the simulator's."""

import re
from collections.abc import AsyncIterator
from unittest.mock import AsyncMock

import pytest
from aiohttp import web

from surelane_service.probes import private_app, serving
from tests.databases import as_role
from tests.system.ingest_client import served
from tests.system.raw_http import raw, statuses
from tests.system.slack_app import simulated

MARK = b"MARKED-TEXT"
PORTS = ("public", "private", "simulator", "with a broken handler")


@pytest.fixture(scope="module")
async def ports(shared_database: str) -> AsyncIterator[dict[str, int]]:
    async def broken(request: web.Request) -> web.Response:
        raise ValueError(request.path)

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        return response

    routes = [web.get("/broken/{name}", broken), web.get("/stream", stream)]
    broken_app = private_app(AsyncMock(return_value=None), routes)
    async with (
        served(as_role(shared_database, "surelane_ingest")) as ingest,
        serving(broken_app, 0, setting="none", host="127.0.0.1") as broken_port,
        simulated() as slack,
    ):
        simulator = int(slack.url.rpartition(":")[2])
        found = (ingest.ingest.port, ingest.ingest.private_port, simulator, broken_port)
        yield dict(zip(PORTS, found, strict=True))


def get(path: bytes, headers: bytes = b"") -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + headers + b"\r\n"


def bare(answer: bytes) -> None:
    """Fail if an answer quotes the mark, or names software with a version."""
    assert MARK not in answer
    assert re.findall(rb"\r\n[Ss]erver: (.*)\r\n", answer) == [b"surelane"]
    assert not re.search(rb"(?i)python|aiohttp|traceback", answer)


REQUESTS = {
    "no request": (MARK + b"\r\n\r\n", 400),
    "odd method": (MARK + b"<b> / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "odd version": (b"GET / HTTP/" + MARK + b"\r\nHost: x\r\n\r\n", 400),
    "odd address": (b"GET http://[" + MARK + b"/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "header without a colon": (get(b"/", MARK + b"\r\n"), 400),
    "NUL in a header": (get(b"/", b"X: " + MARK + b"\x00\r\n"), 400),
    "odd length": (get(b"/", b"Content-Length: " + MARK + b"\r\n"), 400),
    "odd encoding": (get(b"/", b"Transfer-Encoding: " + MARK + b"\r\n"), 400),
    "huge header": (get(b"/", b"X: " + MARK * 10_000 + b"\r\n"), 400),
    "huge path": (get(b"/" + MARK * 10_000), 400),
    "odd expectation": (get(b"/livez", b"Expect: " + MARK + b"\r\n"), 417),
    "unknown path": (get(b"/" + MARK), 404),
}


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("case", REQUESTS)
async def test_an_answer_to_no_request_is_a_bare_status(ports: dict[str, int], port: str, case: str) -> None:
    request, status = REQUESTS[case]
    answer = await raw(ports[port], request, answers=1)
    assert statuses(answer) == [status], answer
    bare(answer)


async def test_answers_of_handlers_and_streams_and_failures_name_no_version(ports: dict[str, int]) -> None:
    for port, request, status in (
        ("public", get(b"/slack/events"), 405),
        ("private", get(b"/livez"), 200),
        ("simulator", get(b"/"), 200),
        ("with a broken handler", get(b"/broken/" + MARK), 500),
        ("with a broken handler", get(b"/stream"), 200),
    ):
        answer = await raw(ports[port], request, answers=1)
        assert statuses(answer) == [status], answer
        bare(answer)
