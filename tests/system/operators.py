"""Serve the operator's API and page in this process, use them as a browser does, and fill their queue."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from surelane.calls import Connection
from surelane_operator.console.access.access_settings import AccessSettings
from surelane_operator.wiring import running
from tests.sql.migrations import connected


@dataclass
class Person:
    """A browser: it keeps cookies, follows no redirect by itself, and sends what pages send."""

    url: str
    session: aiohttp.ClientSession
    headers: dict[str, str] = field(default_factory=dict)

    async def get(self, path: str, **options: Any) -> tuple[int, str]:
        return await self.send("GET", path, **options)

    async def send(self, method: str, path: str, **options: Any) -> tuple[int, str]:
        url = path if path.startswith("http") else self.url + path
        headers = {**self.headers, **options.pop("headers", {})}
        async with self.session.request(
            method, url, headers=headers, allow_redirects=False, **options
        ) as response:
            return response.status, response.headers.get("Location") or await response.text()

    async def change(
        self, method: str, path: str, *, csrf: str | None = None, **options: Any
    ) -> tuple[int, str]:
        if csrf is None:
            csrf = await self.csrf()
        return await self.send(method, path, headers={"X-CSRF-Token": csrf, "Origin": self.url}, **options)

    async def csrf(self) -> str:
        status, text = await self.get("/console/")
        assert status == 200, text
        found = re.search(r'name="csrf" content="([^"]+)"', text)
        assert found is not None
        return found[1]


@asynccontextmanager
async def person(url: str) -> AsyncIterator[Person]:
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        yield Person(url, session)


@asynccontextmanager
async def page(database: str, **settings: Any) -> AsyncIterator[str]:
    """Serve the private port with these settings; yield its address."""
    own = {"DATABASE_URL": database, "SURELANE_PRIVATE_PORT": 0, "SURELANE_HOST": "127.0.0.1"}
    async with running(AccessSettings.model_validate({**own, **settings})) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
async def emptied(shared_database: str) -> AsyncIterator[Connection]:
    """Connect to a database that tests share, with an empty queue."""
    async with connected(shared_database) as connection:
        await connection.execute(
            "truncate agent.event, agent.event_hist, agent.kind, agent.cron, agent.worker"
            ", agent.operator_action"
        )
        yield connection


async def fail(connection: Connection, identity: int, message: str, worker: str = "w") -> None:
    """Fail an event at its last attempt; no other one of its kind waits."""
    claim = "select agent.claim_events(array[kind], _limit => 1, _claimed_by => $2) from agent.event"
    await connection.execute(f"{claim} where id = $1", identity, worker)
    error = {"type": "ValueError", "message": message, "at": "2026-01-01T00:00:00Z", "worker": worker}
    await connection.execute(
        "select agent.settle(array[$1::int8], '{1}', '{fail}', array[$2::jsonb])",
        identity,
        json.dumps({"error": error, "final": True}),
    )
