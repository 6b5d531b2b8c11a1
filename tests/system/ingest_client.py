"""Send signed requests to ingest as Slack does, and run the service with settings for tests."""

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any
from urllib.parse import urlencode

import aiohttp
import asyncpg
import pytest

from surelane.calls import Connection
from surelane_ingest.answers import PATIENCE, Patience
from surelane_ingest.ingest_settings import IngestSettings
from surelane_ingest.wiring import Ingest, running
from surelane_service.service_settings import load_settings
from surelane_service.telemetry.spans import Tracer
from tests.databases import Server, as_role

SECRET = "test-signing-secret-0123456789abcdef"
TEAM, CHANNEL, BOT, APP = "T1", "C1", "UBOT", "A1"


def event_id() -> str:
    """Return a new event id, as unique as Slack's."""
    return f"Ev{secrets.token_hex(8).upper()}"


def mention(identity: str | None = None, **inner: Any) -> dict[str, Any]:
    """Return the envelope of a person's mention of the bot."""
    ts = f"{time.time():.6f}"
    event = {
        "type": "app_mention",
        "user": "U1",
        "text": "<@UBOT> hello",
        "ts": ts,
        "event_ts": ts,
        "channel": CHANNEL,
    }
    return envelope({**event, **inner}, identity)


def envelope(event: Mapping[str, Any], identity: str | None = None) -> dict[str, Any]:
    """Return Slack's envelope around an inner event."""
    return {
        "token": "verification-token",
        "team_id": TEAM,
        "api_app_id": APP,
        "event": event,
        "type": "event_callback",
        "event_id": identity or event_id(),
        "event_time": int(time.time()),
        "authorizations": [{"enterprise_id": None, "team_id": TEAM, "user_id": BOT, "is_bot": True}],
    }


def signed(body: bytes, secret: str = SECRET, timestamp: str | None = None) -> dict[str, str]:
    """Return the headers with which Slack signs ``body``."""
    timestamp = timestamp or str(int(time.time()))
    digest = hmac.new(secret.encode(), b"v0:" + timestamp.encode() + b":" + body, hashlib.sha256).hexdigest()
    return {"X-Slack-Request-Timestamp": timestamp, "X-Slack-Signature": f"v0={digest}"}


class Answer:
    """An HTTP answer that was read."""

    def __init__(self, response: aiohttp.ClientResponse, body: bytes) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = body

    @property
    def no_retry(self) -> bool:
        """Whether the answer asks Slack not to try again."""
        return self.headers.get("x-slack-no-retry") == "1"

    def __repr__(self) -> str:
        return f"<{self.status} {self.body!r}>"


class Slack:
    """A client that posts to ingest as Slack does."""

    def __init__(self, session: aiohttp.ClientSession, url: str, secret: str = SECRET) -> None:
        self.session = session
        self.url = url
        self.secret = secret

    async def event(self, payload: object, **headers: str) -> Answer:
        return await self.post("/slack/events", json.dumps(payload).encode(), "application/json", **headers)

    async def form(self, path: str, fields: Mapping[str, str]) -> Answer:
        return await self.post(path, urlencode(fields).encode(), "application/x-www-form-urlencoded")

    async def post(
        self, path: str, body: bytes, content_type: str = "application/json", **headers: str
    ) -> Answer:
        sent = {"Content-Type": content_type, **signed(body, self.secret), **headers}
        return await self.send("POST", path, body, sent)

    async def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        async with self.session.request(
            method, self.url + path, data=BytesIO(body), headers=headers
        ) as response:
            return Answer(response, await response.read())


def settings(database: str, **others: str) -> dict[str, str]:
    """Return the environment of an ingest service for tests."""
    return {"DATABASE_URL": database, "SLACK_SIGNING_SECRET": SECRET, "LOG_LEVEL": "debug", **others}


@dataclass(frozen=True)
class Served:
    """The service in this process, and a client for it."""

    ingest: Ingest
    slack: Slack

    @property
    def url(self) -> str:
        return self.slack.url

    @property
    def private_url(self) -> str:
        return f"http://127.0.0.1:{self.ingest.private_port}"


@asynccontextmanager
async def served(
    database: str, *, patience: Patience = PATIENCE, tracer: Tracer | None = None, **others: Any
) -> AsyncIterator[Served]:
    """Run the service in this process, on free ports, for the length of the block."""
    own = {"signing_secret": SECRET, "host": "127.0.0.1", "port": 0, "private_port": 0}
    own["database_budget"] = "30s"  # for a busy machine: Slack's three seconds are the tests' of outages
    chosen = load_settings(IngestSettings, **{"database_url": database, **own, **others})
    async with running(chosen, tracer, patience=patience) as ingest, aiohttp.ClientSession() as session:
        yield Served(ingest, Slack(session, f"http://127.0.0.1:{ingest.port}"))


@asynccontextmanager
async def served_alone(
    server: Server, template: str, **others: Any
) -> AsyncIterator[tuple[Served, Connection]]:
    """Run the service in this process on a database of its own. Yield it with its owner's connection."""
    async with server.fresh(template) as name:
        uri = server.uri(name)
        connection = await asyncpg.connect(uri)
        try:
            async with served(as_role(uri, "surelane_ingest"), **others) as ingest:
                yield ingest, connection
        finally:
            await connection.close()


def own_ingest(**others: Any) -> tuple[Any, Any, Any]:
    """Return the fixtures ``system``, ``ingest`` and ``connection`` of a module.

    All its tests use one service on one database. A test that asks for the connection gets an empty queue.
    """

    @pytest.fixture(scope="module")
    async def system(server: Server, template: str) -> AsyncIterator[tuple[Served, Connection]]:
        async with served_alone(server, template, **others) as both:
            yield both

    @pytest.fixture
    def ingest(system: tuple[Served, Connection]) -> Served:
        return system[0]

    @pytest.fixture
    async def connection(system: tuple[Served, Connection]) -> Connection:
        await system[1].execute("truncate agent.event, agent.event_hist")
        return system[1]

    return system, ingest, connection
