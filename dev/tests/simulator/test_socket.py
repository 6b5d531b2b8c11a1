"""The simulator's Socket Mode, against slack-sdk's own client."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from slack_sdk.errors import SlackApiError
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.async_client import AsyncBaseSocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest
from slack_sdk.socket_mode.response import SocketModeResponse
from slack_sdk.web.async_client import AsyncWebClient

from surelane_dev.simulator.client import SimulatorClient
from surelane_dev.simulator.server import serving_simulator
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.simulator_settings import SimulatorSettings
from surelane_service.service_settings import load_settings
from tests.processes import free_port, until

TOKEN = "xapp-1-A1-2-0a1b2c"


@dataclass
class Slack:
    """A simulator, its control API, and what the app was sent."""

    simulator: Simulator
    control: SimulatorClient
    web: AsyncWebClient
    requests: list[SocketModeRequest] = field(default_factory=list)
    answers: bool = True
    payload: dict[str, Any] | None = None

    @asynccontextmanager
    async def app(self) -> AsyncIterator[SocketModeClient]:
        """Connect an app for the length of the block."""
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
            answer = SocketModeResponse(request.envelope_id, self.payload)
            await client.send_socket_mode_response(answer)

    async def connections(self) -> int:
        """Return how many connections the app has."""
        return int((await self.control.request("GET", "/control/sockets"))["connections"])


@pytest.fixture
async def slack(request: pytest.FixtureRequest) -> AsyncIterator[Slack]:
    settings = load_settings(
        SimulatorSettings,
        port=0,
        ingest_url=f"http://127.0.0.1:{free_port()}",
        timeout=getattr(request, "param", "60s"),
        retry_delays=("0s", "0s"),
    )
    async with (
        serving_simulator(settings) as (url, simulator),
        SimulatorClient(url) as control,
        aiohttp.ClientSession() as session,
    ):
        yield Slack(simulator, control, AsyncWebClient(base_url=f"{url}/api/", session=session))


async def test_an_event_is_delivered_once_it_is_acknowledged(slack: Slack) -> None:
    async with slack.app():
        said = await slack.control.say("hello", mention=True, wait=True)
    (request,) = slack.requests
    assert (request.type, request.retry_attempt, request.accepts_response_payload) == ("events_api", 0, False)
    assert request.payload["event_id"] == said["events"][0]["id"]
    assert said["events"][0]["state"] == "delivered"


@pytest.mark.parametrize("slack", ["500ms"], indirect=True)
async def test_an_event_without_an_acknowledgement_is_sent_again(slack: Slack) -> None:
    slack.answers = False
    async with slack.app():
        await slack.control.say("hello", mention=True)
        await until(lambda: len(slack.requests) == 3, within=60)
    assert [request.retry_attempt for request in slack.requests] == [0, 1, 2]
    assert len({request.payload["event_id"] for request in slack.requests}) == 1


async def test_a_commands_answer_comes_with_the_acknowledgement(slack: Slack) -> None:
    slack.payload = {"text": "all is well"}
    async with slack.app():
        body = {"command": "/status", "text": "", "channel": "general", "user": "ada"}
        answered = await slack.control.request("POST", "/control/commands", body)
    assert slack.requests[0].type == "slash_commands"
    assert slack.requests[0].payload["command"] == "/status"
    assert answered["message"]["text"] == "all is well"


async def test_each_envelope_goes_to_one_connection(slack: Slack) -> None:
    async with slack.app(), slack.app():
        for number in range(6):
            await slack.control.say(f"hello {number}", mention=True, wait=True)
    assert len(slack.requests) == 6


@pytest.mark.parametrize("reason", ["warning", None])
async def test_a_disconnected_app_comes_back(slack: Slack, reason: str | None) -> None:
    async with slack.app() as client:
        first = await client.session_id()
        body = {"reason": reason}
        assert await slack.control.request("POST", "/control/sockets/disconnect", body) == {"disconnected": 1}
        await slack.control.say("hello", mention=True)
        await until(lambda: slack.requests, within=60)
        assert await client.session_id() != first


async def test_only_an_app_level_token_opens_connections(slack: Slack) -> None:
    for token, error in (("xoxb-1", "not_allowed_token_type"), ("any", "invalid_auth")):
        with pytest.raises(SlackApiError, match=error):
            await slack.web.apps_connections_open(app_token=token)
    with pytest.raises(SlackApiError, match="not_allowed_token_type"):
        await slack.web.auth_test(token=TOKEN)


async def test_a_ticket_opens_one_connection_and_an_app_has_ten(slack: Slack) -> None:
    async with aiohttp.ClientSession() as session:
        opened = []
        for number in range(11):
            url = (await slack.web.apps_connections_open(app_token=TOKEN))["url"]
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
