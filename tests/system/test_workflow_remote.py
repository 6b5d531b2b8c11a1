"""Calls to remote agents are signed and bounded, and go only to the URLs in the settings."""

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web

from surelane_service.outbound import LARGEST
from surelane_service.probes import serving
from surelane_service.service_settings import load_settings
from surelane_service.webhooks import verified
from surelane_worker.remote_agents import Accepted, Answered, RemoteAgentError, TaskRefusedError, send
from surelane_worker.worker_settings import WorkerSettings
from tests.processes import free_port

KEY = b"k" * 32
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"
DEADLINE = datetime(2030, 1, 1, tzinfo=UTC)

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def agents(url: str, private: str = "127.0.0.0/8") -> WorkerSettings:
    return load_settings(
        WorkerSettings,
        DATABASE_URL="postgresql://",
        SURELANE_DISPATCH_URLS=f"scribe={url}",
        SURELANE_DISPATCH_SECRETS=f"scribe={SECRET}",
        SURELANE_DISPATCH_PRIVATE=private,
        SURELANE_PUBLIC_URL="https://bot.example",
    )


@asynccontextmanager
async def listening(answer: Answer) -> AsyncIterator[int]:
    """Run a remote agent that gives a chosen answer, and return its port."""
    app = web.Application()
    app.router.add_post("/tasks", answer)
    async with serving(app, 0, setting="none", host="127.0.0.1") as port:
        yield port


@asynccontextmanager
async def agent(answer: Answer) -> AsyncIterator[WorkerSettings]:
    """Run a remote agent that gives a chosen answer, configured in the worker's settings."""
    async with listening(answer) as port:
        yield agents(f"http://127.0.0.1:{port}/tasks")


def answering(status: int, body: bytes = b"", **headers: str) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, body=body, headers=headers)

    return answer


async def test_a_task_is_signed_and_says_where_to_answer() -> None:
    given: list[dict[str, Any]] = []

    async def take(request: web.Request) -> web.Response:
        body = await request.read()
        assert verified(request.headers, body, [KEY]) == "dispatch-7"
        given.append(json.loads(body))
        return web.Response(status=202)

    async with agent(take) as remote:
        assert await send(remote, "scribe", 7, {"write": "this"}, DEADLINE) == Accepted()
    whole = {"id": "7", "agent": "scribe", "task": {"write": "this"}}
    whole |= {"deadline": DEADLINE.isoformat(), "answer_url": "https://bot.example/v1/dispatch/7"}
    assert given == [whole]


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [(200, b'{"n": 1}', Answered({"n": 1})), (200, b"", Accepted()), (204, b"", Accepted())],
)
async def test_an_agent_may_answer_at_once(status: int, body: bytes, outcome: object) -> None:
    async with agent(answering(status, body)) as remote:
        assert await send(remote, "scribe", 1, None, DEADLINE) == outcome


@pytest.mark.parametrize(
    ("status", "body", "headers", "error"),
    [
        (302, b"", {"Location": "http://127.0.0.1:9/"}, TaskRefusedError),
        *((status, b"", {}, TaskRefusedError) for status in (400, 401)),
        *((200, body, {}, TaskRefusedError) for body in (b"not json", b"1" * (LARGEST + 1), b"[" * 100_000)),
        (200, b"x", {"Content-Encoding": "gzip"}, TaskRefusedError),
        *((status, b"", {}, RemoteAgentError) for status in (408, 429, 500, 503)),
        (503, b"x" * (LARGEST + 1), {}, RemoteAgentError),
    ],
)
async def test_what_another_attempt_may_mend_is_told_from_what_it_cannot(
    status: int, body: bytes, headers: dict[str, str], error: type[Exception]
) -> None:
    async with agent(answering(status, body, **headers)) as remote:
        with pytest.raises(error, match="scribe answered"):
            await send(remote, "scribe", 1, None, DEADLINE)


async def test_an_agent_that_is_away_may_come_back_and_is_sent_no_task_that_is_too_large() -> None:
    with pytest.raises(RemoteAgentError, match="scribe: Client"):
        await send(agents(f"http://127.0.0.1:{free_port()}/tasks"), "scribe", 1, None, DEADLINE)
    async with agent(answering(202)) as remote:
        with pytest.raises(TaskRefusedError, match="at most"):
            await send(remote, "scribe", 1, "x" * LARGEST, DEADLINE)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_private_address_is_called_only_where_it_is_listed(host: str) -> None:
    """The address is given as a number and as a name that resolves to it."""
    async with listening(answering(202)) as port:
        url = f"http://{host}:{port}/tasks"
        assert await send(agents(url), "scribe", 1, None, DEADLINE) == Accepted()
    with pytest.raises(TaskRefusedError, match="its address is private"):
        await send(agents(url, "10.0.0.0/8"), "scribe", 1, None, DEADLINE)
