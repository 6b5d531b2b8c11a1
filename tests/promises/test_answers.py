"""What people see in Slack: answers in time and once, replies once, and an agent that asks for nothing twice."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from extensions.agents.tests.system.model_server import calls, model_server, says
from extensions.agents.tests.system.model_server import settings as with_model
from surelane.calls import Connection
from surelane.queue import Queue
from tests.databases import as_role
from tests.processes import service, until
from tests.promises.conftest import becomes, completed, working
from tests.system.ingest_client import Slack, settings
from tests.system.slack_stand import slack_stand
from tests.system.worker import ended, enqueue

ANSWERS = "select bool_or(answers) from agent.kind where kind = 'slack.command.deploy'"
SOON = {"SURELANE_SESSION_GRACE": "500ms"}


@pytest.fixture
async def asking(database: str, connection: Connection) -> AsyncIterator[Slack]:
    """Run ingest, and a worker with one slot for commands and one for the rest."""
    slots = {"SURELANE_CONCURRENCY": "1", "SURELANE_INTERACTIVE_CONCURRENCY": "1"}
    env = settings(as_role(database, "surelane_ingest"))
    async with service("surelane_ingest", env) as ingest, working(database, **SOON, **slots):
        await becomes(connection, "select count(*) = 1 from agent.list_workers() as w where w.kinds <> '{}'")
        async with aiohttp.ClientSession() as session:
            yield Slack(session, ingest.url)


def command(name: str, trigger: str, text: str = "") -> dict[str, str]:
    return {"command": name, "text": text, "trigger_id": trigger, "team_id": "T1", "channel_id": "C1"}


@pytest.mark.promise("answers")
@pytest.mark.promise("answers once")
@pytest.mark.promise("interactive")
async def test_a_command_is_answered_once_while_every_other_slot_and_its_channel_are_busy(
    asking: Slack, connection: Connection, tmp_path: Path
) -> None:
    payload = {"log": str(tmp_path / "log")}
    held = await enqueue(connection, "hold", payload, group_key="T1:C1")
    await becomes(connection, "select claimed_by is not null from agent.event where id = $1", held)
    async with asyncio.timeout(90):
        number = 0
        while not (
            answer := await asking.form("/slack/events", command("/deploy", f"1.{number}", "api"))
        ).body:
            number += 1  # a machine that needs longer than the 2.9 seconds gets an empty answer in time
            assert answer.status == 200
    assert json.loads(answer.body)["text"] == "deploying api"
    row = await connection.fetchrow(
        "select id from agent.job where kind = 'slack.command.deploy' order by id desc limit 1"
    )
    assert row is not None
    assert await completed(connection, row["id"]) == [True, False]
    (tmp_path / "log.go").touch()
    await completed(connection, held)


@pytest.mark.promise("answers")
async def test_a_command_whose_worker_dies_is_answered_with_nothing_and_handled(
    asking: Slack, database: str, connection: Connection
) -> None:
    answer = await asking.form("/slack/events", command("/die", "1"))
    assert (answer.status, answer.body) == (200, b"")
    async with working(database, **SOON):
        identity = await connection.fetchval("select id from agent.job where kind = 'slack.command.die'")
        assert await completed(connection, identity) is False


@pytest.mark.promise("replies")
async def test_a_worker_that_is_killed_between_its_replies_sends_the_missing_one(
    database: str, connection: Connection
) -> None:
    async with slack_stand(connection) as slack:
        given = {**SOON, "SLACK_API_URL": slack.api}
        async with working(database, **given) as first:
            identity, message = await slack.mention("die")
            await until(lambda: first.child.exit_code is not None, within=90, what="the death")
        async with working(database, **given):
            row = await ended(connection, identity, within=90)
        assert (row["outcome"], row["attempts"]) == ("completed", 2)
        assert slack.answers(message) == ["first", "second"]


@pytest.mark.promise("agent")
async def test_a_turn_whose_worker_dies_in_a_tool_asks_for_no_response_again(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with model_server() as model:
        noted = [("note", {"log": str(log), "text": text}) for text in ("first", "die")]
        model.plans["mortal"] = [calls(noted[0]), calls(noted[1]), says("Alive.")]
        identity = await Queue(connection).enqueue("agent-turn", {"text": "plan:mortal"})
        given = with_model(model, SURELANE_MODEL_TOOLS="tests.promises.handlers:tools", **SOON)
        async with working(database, ready="", **given) as first:
            assert await asyncio.wait_for(first.child.wait(), 90) == -signal.SIGKILL
        async with working(database, **given):
            assert (await ended(connection, identity, within=90))["outcome"] == "completed"
        assert len(model.asked["mortal"]) == 3
        assert log.read_text().split() == ["first", "die", "die"]
