"""A web page in a browser that reaches a private port can read and change nothing there."""

from collections.abc import AsyncIterator, Mapping

import aiohttp
import pytest
from aiohttp import web

from surelane_service.probes import is_private_name, private_app, serving


@pytest.fixture(scope="module")
async def url() -> AsyncIterator[str]:
    """Serve a private port with an operator's route; return its URL."""

    async def unready() -> str | None:
        return None

    async def jobs(_: web.Request) -> web.Response:
        return web.json_response({})

    app = private_app(unready, [web.route("*", "/v1/jobs", jobs)], {"queue.example.com"})
    async with serving(app, 0, setting="none", host="127.0.0.1") as port:
        yield f"http://127.0.0.1:{port}"


async def status(method: str, url: str, headers: Mapping[str, str]) -> int:
    async with aiohttp.ClientSession() as session, session.request(method, url, headers=headers) as response:
        return response.status


@pytest.mark.parametrize(
    "host",
    [
        *(
            "127.0.0.1:8081",
            "10.1.2.3",
            "[::1]:8081",
            "[fe80::1]",
            "::1",
            "localhost:8081",
            "ingest",
            "ingest:8081",
        ),
        *("ingest.surelane.svc:8081", "ingest.surelane.svc.cluster.local", "LOCALHOST.", "x.localhost", ""),
        *("queue.example.com:8081", "Queue.Example.Com."),
    ],
)
def test_names_that_no_outsider_owns_are_private(host: str) -> None:
    assert is_private_name(host, {"queue.example.com"})


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "evil.example:8081",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "svc.example",
        ),
        *(
            "queue.example.com.evil.example",
            "1.2.3",
            "127.0.0.1.",
            "xqueue.example.com",
            "evil.example@127.0.0.1",
        ),
    ],
)
def test_names_that_somebody_can_point_here_are_not(host: str) -> None:
    assert is_private_name(host, {"queue.example.com"}) is (host == "127.0.0.1.")


async def test_a_page_under_a_rebound_name_reaches_no_operators_route(url: str) -> None:
    for method in ("GET", "POST"):
        assert await status(method, url + "/v1/jobs", {"Host": "evil.example"}) == 403
        assert await status(method, url + "/v1/jobs", {"Host": "queue.example.com"}) == 200
        assert await status(method, url + "/v1/jobs", {}) == 200


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics"])
async def test_probes_are_answered_under_any_name(url: str, path: str) -> None:
    assert await status("GET", url + path, {"Host": "worker-1.prod.example.com:8081"}) == 200


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
async def test_requests_of_other_sites_are_refused(
    url: str, headers: Mapping[str, str], expected: int
) -> None:
    for path in ("/v1/jobs", "/metrics"):
        assert await status("GET", url + path, headers) == expected


async def test_the_operators_own_pages_are_answered(url: str) -> None:
    assert await status("POST", url + "/v1/jobs", {"Origin": url}) == 200
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert await status("GET", url + "/v1/jobs", link) == 200
    assert await status("POST", url + "/v1/jobs", link) == 403
