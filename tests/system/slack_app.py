"""Stand in for the app that a simulated Slack posts to: record each request, and give prepared answers."""

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web
from slack_sdk.signature import SignatureVerifier
from slack_sdk.web.async_client import AsyncWebClient

from surelane_dev.simulator.client import SimulatorClient
from surelane_dev.simulator.server import serving_simulator
from surelane_dev.simulator.simulator_settings import SimulatorSettings
from surelane_service.probes import serving
from surelane_service.service_settings import DEMO_SIGNING_SECRET
from tests.processes import until

AT_ONCE = (timedelta(0), timedelta(milliseconds=20), timedelta(milliseconds=40))
TOKEN = "xoxb-any"


@dataclass(frozen=True)
class Received:
    """A received request."""

    path: str
    headers: dict[str, str]
    body: bytes
    genuine: bool
    """Whether slack-sdk's verifier accepts its signature."""
    status: int
    """The status of its answer."""

    @property
    def envelope(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def form(self) -> dict[str, str] | None:
        """The fields of a command or an interaction; ``None`` for an event."""
        is_form = self.headers.get("Content-Type") == "application/x-www-form-urlencoded"
        return dict(parse_qsl(self.body.decode(), keep_blank_values=True)) if is_form else None

    @property
    def payload(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.form or {})["payload"])
        return found

    @property
    def retry(self) -> tuple[str | None, str | None]:
        """Slack's retry headers: number and reason."""
        return self.headers.get("X-Slack-Retry-Num"), self.headers.get("X-Slack-Retry-Reason")


@dataclass
class Answer:
    """The stand-in's answer to one request."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    after: float = 0


class StandIn:
    """An app that uses up the prepared ``answers`` in order, and then answers 200 at once."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.answers: deque[Answer] = deque()
        self.over = asyncio.Event()
        """Set when no slow answer is waited for."""
        self._verifier = SignatureVerifier(DEMO_SIGNING_SECRET)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [each.envelope for each in self.received if each.form is None]

    @property
    def acknowledged(self) -> list[dict[str, Any]]:
        return [each.envelope for each in self.received if each.form is None and each.status == 200]

    def app(self) -> web.Application:
        app = web.Application()
        app.add_routes([web.post("/slack/{what}", self._take)])
        return app

    def answer(self, body: object) -> None:
        self.answers.append(Answer(headers={"Content-Type": "application/json"}, body=json.dumps(body)))

    async def arrive(self, number: int) -> list[Received]:
        """Wait until that many requests have arrived."""
        await until(lambda: len(self.received) >= number, what=f"the arrival of request {number}")
        return self.received

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()
        genuine = self._verifier.is_valid_request(body, dict(request.headers))
        headers = {name.title(): value for name, value in request.headers.items()}
        answer = self.answers.popleft() if self.answers else Answer()
        self.received.append(Received(request.path, headers, body, genuine, answer.status))
        if answer.after:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.over.wait(), answer.after)
        return web.Response(status=answer.status, headers=answer.headers, text=answer.body)


@dataclass(frozen=True)
class Pair:
    """A simulator, and the stand-in to which it posts."""

    url: str
    control: SimulatorClient
    app: StandIn

    @property
    def web(self) -> AsyncWebClient:
        """Return slack-sdk's client with the bot's token."""
        return AsyncWebClient(token=TOKEN, base_url=f"{self.url}/api/")

    async def said(self, text: str = "hello", **fields: Any) -> dict[str, Any]:
        """Let Ada mention the bot in #general; return her message."""
        answer = await self.control.say(text, **({"mention": True} | fields))
        message: dict[str, Any] = answer["message"]
        return message

    async def settled(self, event_id: str, state: str) -> dict[str, Any]:
        """Wait until a delivery is in a state; return it."""
        deadline = time.monotonic() + 30
        while (delivery := await self.control.request("GET", f"/control/deliveries/{event_id}"))[
            "state"
        ] != state:
            assert time.monotonic() < deadline, f"{delivery} did not get {state}"
            await asyncio.sleep(0.02)
        return delivery


@asynccontextmanager
async def simulated(**settings: Any) -> AsyncIterator[Pair]:
    app = StandIn()
    async with serving(app.app(), 0, setting="none", host="127.0.0.1") as port:
        defaults: dict[str, Any] = {
            "port": 0,
            "ingest_url": f"http://127.0.0.1:{port}",
            "retry_delays": AT_ONCE,
        }
        chosen = SimulatorSettings(**(defaults | settings))
        async with serving_simulator(chosen) as (url, _), SimulatorClient(url) as control:
            yield Pair(url, control, app)
        app.over.set()
