"""The simulator's Socket Mode, against slack-sdk's own client."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.async_client import AsyncBaseSocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest
from slack_sdk.socket_mode.response import SocketModeResponse
from slack_sdk.web.async_client import AsyncWebClient

from dev.tests.simulator.calls import failing
from tests.processes import free_port, until
from tests.system.slack_app import Pair, simulated

TOKEN = "xapp-1-A1-2-0a1b2c"


@dataclass
class App:
    """An app that connects, and what it was sent."""

    pair: Pair
    web: AsyncWebClient
    requests: list[SocketModeRequest] = field(default_factory=list)
    answers: bool = True
    payload: dict[str, Any] | None = None

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[SocketModeClient]:
        """Connect for the length of the block."""
        client = SocketModeClient(TOKEN, web_client=self.web, ping_interval=1)
        client.socket_mode_request_listeners.append(self._take)
        await client.connect()  # type: ignore[no-untyped-call]
        try:
            yield client
        finally:
            await client.close()  # type: ignore[no-untyped-call]

    async def _take(self, client: AsyncBaseSocketModeClient, request: SocketModeRequest) -> None:
        self.requests.append(request)
        if self.answers:
            await client.send_socket_mode_response(SocketModeResponse(request.envelope_id, self.payload))


@pytest.fixture
async def app(request: pytest.FixtureRequest) -> AsyncIterator[App]:
    timeout = getattr(request, "param", "60s")
    nobody = f"http://127.0.0.1:{free_port()}"
    async with simulated(timeout=timeout, ingest_url=nobody) as pair, aiohttp.ClientSession() as session:
        yield App(pair, AsyncWebClient(base_url=f"{pair.url}/api/", session=session))


async def test_each_event_is_delivered_to_one_connection_once_it_is_acknowledged(app: App) -> None:
    async with app.connected(), app.connected():
        said = [await app.pair.control.say(f"hello {n}", mention=True, wait=True) for n in range(6)]
    first = app.requests[0]
    assert (first.type, first.retry_attempt, first.accepts_response_payload) == ("events_api", 0, False)
    ids = [each["events"][0]["id"] for each in said]
    assert [request.payload["event_id"] for request in app.requests] == ids
    assert {each["events"][0]["state"] for each in said} == {"delivered"}


@pytest.mark.parametrize("app", ["500ms"], indirect=True)
async def test_an_event_without_an_acknowledgement_is_sent_again(app: App) -> None:
    app.answers = False
    async with app.connected():
        await app.pair.control.say("hello", mention=True)
        await until(lambda: len(app.requests) == 3, within=60)
    assert [request.retry_attempt for request in app.requests] == [0, 1, 2]
    assert len({request.payload["event_id"] for request in app.requests}) == 1


async def test_a_commands_answer_comes_with_the_acknowledgement(app: App) -> None:
    app.payload = {"text": "all is well"}
    async with app.connected():
        body = {"command": "/status", "text": "", "channel": "general", "user": "ada"}
        answered = await app.pair.control.request("POST", "/control/commands", body)
    assert app.requests[0].type == "slash_commands"
    assert app.requests[0].payload["command"] == "/status"
    assert answered["message"]["text"] == "all is well"


@pytest.mark.parametrize("reason", ["warning", None])
async def test_a_disconnected_app_comes_back(app: App, reason: str | None) -> None:
    async with app.connected() as client:
        first = await client.session_id()
        told = await app.pair.control.request("POST", "/control/sockets/disconnect", {"reason": reason})
        assert told == {"disconnected": 1}
        await app.pair.control.say("hello", mention=True)
        await until(lambda: app.requests, within=60)
        assert await client.session_id() != first


async def test_only_an_app_level_token_opens_connections_a_ticket_one_and_an_app_has_ten(app: App) -> None:
    async with aiohttp.ClientSession() as session:
        opened = []
        for number in range(11):
            url = (await app.web.apps_connections_open(app_token=TOKEN))["url"]
            socket = await session.ws_connect(url)
            opened.append(socket)
            frame = await socket.receive_json()
            if number < 10:
                assert (frame["type"], frame["num_connections"]) == ("hello", number + 1)
            else:
                assert (frame["type"], frame["reason"]) == ("disconnect", "too_many_websockets")
            with pytest.raises(aiohttp.WSServerHandshakeError):
                await session.ws_connect(url)
        await asyncio.gather(*(socket.close() for socket in opened))
    for token, error in (("xoxb-1", "not_allowed_token_type"), ("any", "invalid_auth")):
        assert await failing(app.web.apps_connections_open(app_token=token)) == error
    assert await failing(app.web.auth_test(token=TOKEN)) == "not_allowed_token_type"
