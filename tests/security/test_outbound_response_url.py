"""The worker posts to a payload's ``response_url`` only if it leads to Slack's hosts or the simulator's."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from slack_sdk.models.blocks import DividerBlock
from yarl import URL

from surelane.calls import Connection
from surelane_service.outbound import LARGEST
from surelane_service.probes import serving
from surelane_worker.slack.client import ResponseRefusedError, ResponseUrlError, ResponseUrls, final_reason
from tests.system.slack_stand import slack_stand
from tests.system.worker import ended, enqueue, worker


@asynccontextmanager
async def serving_at(*routes: web.RouteDef) -> AsyncIterator[str]:
    app = web.Application()
    app.add_routes(routes)
    async with serving(app, 0, setting="none", host="127.0.0.1") as port:
        yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def posting(simulator: str) -> AsyncIterator[ResponseUrls]:
    urls = ResponseUrls(frozenset({URL(simulator)}))
    try:
        yield urls
    finally:
        await urls.close()


@pytest.fixture
async def victim() -> AsyncIterator[tuple[str, list[bytes]]]:
    """Serve what does not belong to Slack; yield its URL and what it receives."""
    received: list[bytes] = []

    async def take(request: web.Request) -> web.Response:
        received.append(await request.read())
        return web.Response(text="ok")

    async with serving_at(web.route("*", "/admin", take)) as url:
        yield f"{url}/admin", received


async def test_payloads_choose_no_address(
    database: str, connection: Connection, victim: tuple[str, list[bytes]]
) -> None:
    """Neither a forged command nor a job that does not come from Slack does."""
    url, received = victim
    async with slack_stand(connection) as slack:
        general = slack.simulator.workspace.channel("general")
        assert general is not None
        command = {"command": "/hello", "channel_id": general.id, "trigger_id": "1.2"}
        handlers = "tests.security.outbound_handlers:handlers"
        async with worker(database, SLACK_API_URL=slack.api, SURELANE_HANDLERS=handlers):
            forged = await slack.queue.insert_event(json.dumps({**command, "response_url": url}))
            job = await enqueue(connection, "told", {"channel": general.id, "response_url": url})
            assert (await ended(connection, forged))["reason"] == "response_url_refused"
            assert (await ended(connection, job))["outcome"] == "completed"
        assert [message.text for message in general.messages.values()][-1] == "told"
    assert received == []


async def test_a_redirect_is_not_followed(victim: tuple[str, list[bytes]]) -> None:
    url, received = victim

    async def lead_on(_: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect(url)

    async with serving_at(web.post("/response/key", lead_on)) as origin, posting(origin) as urls:
        assert (await urls.post(f"{origin}/response/key", {"text": "secret"})).status == 307
    assert received == []
    assert final_reason(ResponseRefusedError(307)) == "response_refused"


FOREIGN = (
    *("http://hooks.slack.com/commands/T/1/x", "https://hooks.slack.com:8443/commands/T/1/x"),
    *("https://hooks.slack.com.evil.example/x", "https://hooks.slack.com@evil.example/x"),
    *("https://user@hooks.slack.com/x", "https://evil.example/hooks.slack.com", "file:///etc/passwd"),
    *("http://simulator:8091/response/x", "https://simulator:8090/response/x", "https://[::1", ""),
    *("http://169.254.169.254/latest/meta-data", "//hooks.slack.com/x", "https://hooks.slack.com:99999/"),
    "https://hooks.slack.com/" + "x" * 2000,
)


@pytest.mark.parametrize("url", FOREIGN)
async def test_only_the_hosts_of_slack_and_of_the_simulator_are_posted_to(url: str) -> None:
    async with posting("http://simulator:8090") as urls:
        with pytest.raises(ResponseUrlError):
            await urls.post(url, {"text": "hello"})


async def test_an_answer_is_read_up_to_its_bound_and_never_decompressed() -> None:
    async def flood(_: web.Request) -> web.StreamResponse:
        return web.Response(body=b"x" * (LARGEST + 1), headers={"Content-Encoding": "gzip"})

    async def echo(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    routes = [web.post("/flood", flood), web.post("/echo", echo)]
    async with serving_at(*routes) as origin, posting(origin) as urls:
        assert (await urls.post(f"{origin}/flood", {})).body is None
        message = {"text": None, "blocks": [DividerBlock()], "thread_ts": "1.1"}
        sent = (await urls.post(f"{origin}/echo", message)).body
        assert json.loads(sent or b"") == {"blocks": [{"type": "divider"}], "thread_ts": "1.1"}
