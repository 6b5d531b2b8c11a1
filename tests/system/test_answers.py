"""A handler answers Slack's request in the HTTP response: through real HTTP, with real workers."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest

from surelane.calls import Connection
from surelane_ingest.answers import POLL, Patience
from tests.databases import as_role
from tests.processes import Service
from tests.system.ingest_client import Answer, Served, Slack, served
from tests.system.worker import claimed, ended, worker

pytestmark = pytest.mark.usefixtures("running")

HANDLERS = "tests.system.answering_handlers:handlers"


def command(name: str, trigger: str, text: str = "") -> dict[str, str]:
    return {"command": name, "text": text, "trigger_id": trigger, "team_id": "T1"}


def interaction(kind: str, trigger: str, **fields: Any) -> dict[str, str]:
    team = {"team": {"id": "T1", "domain": "acme"}, "user": {"id": "U1"}}
    return {"payload": json.dumps({"type": kind, "trigger_id": trigger, **team, **fields})}


LONG = Patience(wait=30.0, grace=30.0)
"""Longer than a slow machine needs to answer a request, and to end one."""
SHORT = Patience(wait=0.3, grace=30.0)


def ingest(database: str, patience: Patience = LONG) -> AbstractAsyncContextManager[Served]:
    return served(as_role(database, "surelane_ingest"), patience=patience)


@pytest.fixture
async def slack(database: str) -> AsyncIterator[Slack]:
    async with ingest(database) as running:
        yield running.slack


@pytest.fixture
async def hurried(database: str) -> AsyncIterator[Slack]:
    """Send requests that wait for a moment alone."""
    async with ingest(database, SHORT) as running:
        yield running.slack


@pytest.fixture
async def running(database: str) -> AsyncIterator[Service]:
    async with answering(database) as started:
        yield started


def answering(database: str) -> AbstractAsyncContextManager[Service]:
    return worker(
        database,
        SURELANE_HANDLERS=HANDLERS,
        SURELANE_CONCURRENCY="1",
        SURELANE_MAX_ATTEMPTS="2",
        SURELANE_DRAIN_TIMEOUT="100ms",
        SURELANE_SESSION_GRACE="200ms",
    )


async def post(slack: Slack, form: dict[str, str]) -> Answer:
    answer = await slack.form("/slack/events", form)
    assert answer.status == 200, answer
    return answer


async def result(connection: Connection, identity: int) -> Any:
    row = await ended(connection, identity)
    return row["result"] and json.loads(row["result"])


async def test_handlers_answer_commands_modals_and_menus(slack: Slack, connection: Connection) -> None:
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
    slack: Slack, connection: Connection
) -> None:
    answer = await post(slack, command("/hold", "1"))
    assert answer.body == b""
    assert await claimed(connection, 1), "the handler still runs"
    for trigger, name in (("2", "/raise"), ("3", "/wrong")):
        assert (await post(slack, command(name, trigger))).body == b""
    row = await ended(connection, 3)
    assert "takes only text, blocks, response_type" in row["errors"]


async def test_request_gets_an_empty_answer_when_its_time_is_up_and_a_late_one_is_refused(
    hurried: Slack, connection: Connection, tmp_path: Path
) -> None:
    say = tmp_path / "say"
    assert (await post(hurried, command("/hold-answer", "1", str(say)))).body == b""
    assert await connection.fetchval("select count(*) from agent.request") == 0
    say.touch()
    assert await result(connection, 1) is False
    await asyncio.sleep(3 * POLL)  # a quiet moment: ingest still listens, and waits for nothing
    async with asyncio.timeout(SHORT.grace):
        assert (await post(hurried, command("/hold-answer", "2", "/nowhere"))).body == b""
    assert await connection.fetchval("select count(*) from agent.request") == 0


async def test_command_and_modal_that_no_worker_handles_are_refused_and_never_run(
    slack: Slack, connection: Connection
) -> None:
    """Slack tells the person that it failed. The person may try again, so it must not run later."""
    for form in (command("/unhandled", "1"), interaction("view_submission", "2", view={"callback_id": "?"})):
        refused = await slack.form("/slack/events", form)
        assert (refused.status, refused.no_retry) == (404, True)
    assert await connection.fetchval("select deadline < now() from agent.event where id = 1")


async def test_answer_finds_the_replica_that_waits_and_a_repeated_request_gets_it_too(
    slack: Slack, database: str, connection: Connection, tmp_path: Path
) -> None:
    say = tmp_path / "say"
    form = command("/hold-answer", "1", str(say))
    async with ingest(database) as other:
        first, again, elsewhere = (
            asyncio.create_task(post(each, form)) for each in (slack, slack, other.slack)
        )
        while await connection.fetchval("select count(*) from agent.request") < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        # Not always 1: each of the three inserts may take a number, and one of them stores the event.
        identity = await connection.fetchval("select id from agent.event")
        await claimed(connection, identity)
        say.touch()
        for task in (first, elsewhere):
            assert json.loads((await task).body) == {"text": "held"}
        assert (await again).body in (b"", b'{"text": "held"}')
    assert await result(connection, identity) is True
    # The event has ended: a repeated request is answered at once.
    assert (await post(slack, form)).body == b""


async def test_answer_arrives_although_the_connection_that_listens_was_cut(
    slack: Slack, database: str, connection: Connection, tmp_path: Path
) -> None:
    say = tmp_path / "say"
    asked = asyncio.create_task(post(slack, command("/hold-answer", "1", str(say))))
    await claimed(connection, 1)
    insider = await asyncpg.connect(as_role(database, "surelane_ingest"))
    assert await insider.fetchval(
        "select bool_or(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database()"
        " and usename = current_user and pid <> pg_backend_pid()"
    )
    await insider.close()
    say.touch()
    assert json.loads((await asked).body) == {"text": "held"}
    assert await result(connection, 1) is True


async def test_stopping_ingest_waits_for_answers(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    say = tmp_path / "say"
    async with aiohttp.ClientSession() as session:
        async with ingest(database) as stopping:
            slack = Slack(session, stopping.url)
            asked = asyncio.create_task(post(slack, command("/hold-answer", "1", str(say))))
            await claimed(connection, 1)
            asyncio.get_running_loop().call_later(0.1, say.touch)
        assert json.loads((await asked).body) == {"text": "held"}
