"""A handler answers Slack's request in the HTTP response: through real HTTP, with real workers."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from surelane.calls import Connection
from tests.databases import as_role
from tests.processes import Service
from tests.system.ingest_client import Answer, Slack, served
from tests.system.worker import claimed, ended, worker

HANDLERS = "tests.system.answering_handlers:handlers"


def command(name: str, trigger: str, text: str = "") -> dict[str, str]:
    return {"command": name, "text": text, "trigger_id": trigger, "team_id": "T1"}


def interaction(kind: str, trigger: str, **fields: Any) -> dict[str, str]:
    team = {"team": {"id": "T1", "domain": "acme"}, "user": {"id": "U1"}}
    return {"payload": json.dumps({"type": kind, "trigger_id": trigger, **team, **fields})}


@pytest.fixture
async def slack(database: str) -> AsyncIterator[Slack]:
    async with served(as_role(database, "surelane_ingest")) as running:
        yield running.slack


@pytest.fixture
async def running(database: str) -> AsyncIterator[Service]:
    async with worker(database, SURELANE_HANDLERS=HANDLERS, SURELANE_CONCURRENCY="1") as started:
        yield started


async def post(slack: Slack, form: dict[str, str]) -> Answer:
    answer = await slack.form("/slack/events", form)
    assert answer.status == 200, answer
    return answer


async def result(connection: Connection, identity: int) -> Any:
    row = await ended(connection, identity)
    return row["result"] and json.loads(row["result"])


async def test_handlers_answer_commands_modals_and_menus(
    slack: Slack, connection: Connection, running: Service
) -> None:
    answer = await post(slack, command("/deploy", "1"))
    assert json.loads(answer.body) == {"text": "deploying", "response_type": "in_channel"}
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
    assert await result(connection, 1) == [True, False]
    answer = await post(slack, command("/text", "2", "gr\u00fc\u00df\U0001f600"))
    assert answer.body.decode() == "gr\u00fc\u00df\U0001f600"
    assert answer.headers["Content-Type"].startswith("text/plain")
    answer = await post(slack, interaction("view_submission", "3", view={"callback_id": "ask"}))
    assert json.loads(answer.body) == {"response_action": "errors", "errors": {"name": "taken"}}
    answer = await post(slack, interaction("view_submission", "4", view={"callback_id": "large"}))
    assert json.loads(answer.body)["view"]["private_metadata"] == "\N{BLACK CHESS KING}" * 80_000
    answer = await post(slack, interaction("block_suggestion", "5", action_id="city"))
    assert len(json.loads(answer.body)["options"]) == 100
    assert [await result(connection, identity) for identity in (2, 3, 4, 5)] == [True] * 4
    assert await connection.fetchval("select count(*) from agent.request where answer is null") == 0


async def test_event_without_an_answer_is_acknowledged_when_it_is_claimed_or_ends(
    slack: Slack, connection: Connection, running: Service
) -> None:
    answer = await post(slack, command("/hold", "1"))
    assert answer.body == b""
    assert await claimed(connection, 1), "the handler still runs"
    for trigger, name in (("2", "/raise"), ("3", "/wrong")):
        assert (await post(slack, command(name, trigger))).body == b""
    row = await connection.fetchrow("select errors from agent.event where id = 3")
    assert row is not None
    assert "takes only text, blocks, response_type" in row["errors"]
