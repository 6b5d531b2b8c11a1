"""The workflow examples run with ingest, a worker, a database and remote agents over real HTTP."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import aiohttp
import pytest
from examples.agent_turn.gateway import TABLE, Message, receive
from examples.dispatch.agent import Agent

from surelane.calls import Connection
from surelane.jobs import Continuation, Job
from surelane.queue import Queue
from surelane_operator.changes import Changes
from surelane_service.engine import Engine
from surelane_service.probes import serving
from surelane_service.webhooks import answer_id, sign
from tests.databases import as_role
from tests.processes import free_port, service
from tests.system.ingest_client import Served, served
from tests.system.operators import page
from tests.system.shared import shared_connection
from tests.system.worker import ended

TOKEN = "an-operators-token-0123456789"
KEYS = {name: name.encode() * 6 for name in ("counter", "shouter", "silent")}
SECRETS = ",".join(f"{name}=whsec_{base64.b64encode(key).decode()}" for name, key in KEYS.items())
HANDLERS = "tests.system.workflow_handlers:handlers"


@dataclass(frozen=True)
class System:
    """The running services and their queue."""

    queue: Queue
    connection: Connection
    ingest: Served
    operators: str
    asked: list[Any]

    async def result(self, kind: str, after: int) -> Any:
        """Wait for the event of a kind that was stored after ``after``. Return its result."""
        query = "select result from agent.event_hist where kind = $1 and id > $2 and outcome = 'completed'"
        async with asyncio.timeout(60):
            while (found := await self.connection.fetchval(query, kind, after)) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return json.loads(found)


connection = shared_connection


@pytest.fixture(scope="module")
async def system(shared_database: str, connection: Connection) -> AsyncIterator[System]:
    async with AsyncExitStack() as stack:
        role, enter = partial(as_role, shared_database), stack.enter_async_context
        ingest = await enter(served(role("surelane_ingest"), port=free_port(), dispatch_secrets=SECRETS))
        operators = await enter(page(role("surelane_operator"), SURELANE_API_TOKEN=TOKEN))
        asked: list[Any] = []
        apps = {agent: Agent(agent, KEYS[agent]).app() for agent in ("counter", "shouter")}
        urls = {}
        for agent, app in {**apps, "silent": _silent(asked)}.items():
            port = await enter(serving(app, 0, setting="none", host="127.0.0.1"))
            urls[agent] = f"http://127.0.0.1:{port}/tasks"
        # As after an outage of two hours, the worker declares it again at its start, and it fires once.
        await Engine(connection).set_cron(
            "refresh-prices",
            kind="provider-refresh",
            schedule="*/5 * * * *",
            next_at=datetime.now(UTC) - timedelta(hours=2),
            time_zone="Europe/Berlin",
        )
        env = {
            "DATABASE_URL": role("surelane_worker"),
            "SURELANE_HANDLERS": HANDLERS,
            "SLACK_API_URL": "http://127.0.0.1:9/api/",
            "SURELANE_BACKOFF_BASE": "50ms",
            "SURELANE_SWEEP_INTERVAL": "200ms",
            "SURELANE_DISPATCH_URLS": ",".join(f"{agent}={url}" for agent, url in urls.items()),
            "SURELANE_DISPATCH_SECRETS": SECRETS,
            "SURELANE_DISPATCH_PRIVATE": "127.0.0.0/8",
            "SURELANE_PUBLIC_URL": ingest.url,
        }
        await enter(service("surelane_worker", env))
        yield System(Queue(connection), connection, ingest, operators, asked)


def _silent(asked: list[Any]) -> aiohttp.web.Application:
    """Accept every task and never answer it."""

    async def take(request: aiohttp.web.Request) -> aiohttp.web.Response:
        asked.append(await request.json())
        return aiohttp.web.Response(status=202)

    app = aiohttp.web.Application()
    app.router.add_post("/tasks", take)
    return app


async def _last_id(connection: Connection) -> int:
    identity: int = await connection.fetchval("select coalesce(max(id), 0) from agent.job")
    return identity


async def test_a_message_that_is_delivered_twice_is_one_turn_and_turns_keep_their_order(
    system: System,
) -> None:
    await system.connection.execute(TABLE)
    messages = [Message("s1", f"m{number}", "U1", f"{'word ' * number}") for number in (1, 2, 3)]
    turns = []
    async with system.connection.transaction():
        for message in messages:
            turns += [await receive(system.connection, message) for _ in range(2)]
    rows = [await ended(system.connection, turn) for turn in turns[::2]]

    assert turns[::2] == turns[1::2]
    answers = [json.loads(row["result"])["answer"][:11] for row in rows]
    assert answers == [f"You said {number} " for number in (1, 2, 3)]
    assert await system.result("embed-memories", turns[0])
    handled = await system.connection.fetch(
        "select item_key from agent.job where kind = 'analytics-write' order by id"
    )
    assert [row["item_key"] for row in handled] == [f"analytics:{turn}" for turn in turns[::2]]


async def test_an_orchestration_that_was_asked_for_over_http_is_put_together(system: System) -> None:
    before = await _last_id(system.connection)
    async with system.ingest.slack.session.post(
        f"{system.operators}/v1/orchestrate",
        json={"goal": "one\n\ntwo flaky words\n\nunreadable"},
        headers={"Authorization": f"Bearer {TOKEN}"},
    ) as response:
        assert response.status == 202
    assert await system.result("orchestrator-synthesize", before) == {"words": 4, "unread": 1}


async def test_remote_agents_answers_are_put_together(system: System) -> None:
    identity = await system.queue.enqueue("question", {"question": "how many words"})
    assert await system.result("dispatch-synthesize", identity) == {"counter": 3, "shouter": "HOW MANY WORDS"}


async def test_an_answer_that_comes_too_late_is_refused_and_the_rest_goes_on(system: System) -> None:
    before = await _last_id(system.connection)
    children = [
        Job("dispatch-execute", {"agent": "silent", "task": "?", "within": "300ms"}),
        Job("dispatch-execute", {"agent": "counter", "task": "one two"}),
    ]
    await system.queue.fan_out(children, Continuation("dispatch-synthesize"))
    answers = {"silent": "deadline_passed", "counter": 2}
    assert await system.result("dispatch-synthesize", before) == answers
    path = system.asked[-1]["answer_url"].removeprefix(system.ingest.url)
    signed = sign(answer_id(path.rpartition("/")[2]), b'"late"', [KEYS["silent"]])
    headers = {"Content-Type": "application/json", **signed}
    assert (await system.ingest.slack.send("POST", path, b'"late"', headers)).status == 404


async def test_a_schedule_that_came_with_its_handler_caught_up_once(system: System) -> None:
    result = await system.result("provider-refresh", 0)
    assert set(result["prices"]) == {"north", "south"}
    fired = await system.connection.fetch(
        "select (payload ->> 'scheduled_at')::timestamptz as scheduled_at, enqueued_at"
        " from agent.job where kind = 'provider-refresh'"
    )
    # It fires once for the whole outage, for the last missed time before the worker's start.
    assert all(row["enqueued_at"] - row["scheduled_at"] < timedelta(minutes=6) for row in fired)
    assert len({row["scheduled_at"] for row in fired}) == len(fired)
    (cron,) = await Changes(system.connection).list_cron()
    assert cron["payload"] == {"providers": ["north", "south"]}
    assert cron["next_at"] > max(row["scheduled_at"] for row in fired)
