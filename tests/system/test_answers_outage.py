"""The database goes away while requests wait for their answers: Slack gets an answer in time, and no event is lost."""

import asyncio
import signal
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from surelane.calls import Connection
from surelane_ingest.answers import Patience
from tests.system.ingest_client import Slack, served
from tests.system.restartable import Restartable, restartable
from tests.system.test_answers import answering, command
from tests.system.worker import ended

HELD = "select id from agent.event where kind = 'slack.command.hold-answer' and claimed_by is not null"


@pytest.fixture(scope="module")
async def postgres() -> AsyncIterator[Restartable]:
    async with restartable() as server:
        yield server


@pytest.fixture
async def slack(postgres: Restartable) -> AsyncIterator[Slack]:
    async with served(
        postgres.uri("surelane_ingest"), patience=Patience(wait=1.0), database_budget="2s"
    ) as running:
        yield running.slack


async def held(connection: Connection) -> int:
    """Wait until a worker holds the command, and return the event's id."""
    async with asyncio.timeout(60):
        while (identity := await connection.fetchval(HELD)) is None:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.01)
    return int(identity)


async def test_crash_of_the_database_while_a_request_waits(
    postgres: Restartable, slack: Slack, tmp_path: Path
) -> None:
    say = tmp_path / "say"
    async with answering(postgres.uri()):
        asked = asyncio.create_task(slack.form("/slack/events", command("/hold-answer", "1", str(say))))
        async with postgres.connected() as connection:
            identity = await held(connection)
        await postgres.restart(signal.SIGQUIT)
        answer = await asked
        assert (answer.status, answer.body) == (200, b"")
        say.touch()
        async with postgres.connected() as connection:
            assert (await ended(connection, identity))["outcome"] == "completed"
            # Requests are answered again as soon as ingest listens and the worker is back.
            async with asyncio.timeout(60):
                for number in count():
                    answer = await slack.form("/slack/events", command("/text", f"again {number}", "back"))
                    if answer.body == b"back":
                        break
                    assert (answer.status, answer.body) == (200, b"") or answer.status == 503, answer


async def test_database_that_hangs_is_answered_in_time(
    postgres: Restartable, slack: Slack, tmp_path: Path
) -> None:
    async with answering(postgres.uri()):
        stored = asyncio.create_task(
            slack.form("/slack/events", command("/hold-answer", "3", str(tmp_path / "say")))
        )
        async with postgres.connected() as connection:
            identity = await held(connection)
        postgres.freeze()
        try:
            # The database does not answer before it is thawed: an answer that comes has not waited for it.
            async with asyncio.timeout(100):
                answer = await stored
            refused = await slack.form("/slack/events", command("/text", "4"))
        finally:
            postgres.thaw()
        assert (answer.status, answer.body) == (200, b"")
        assert refused.status == 503
        async with postgres.connected() as connection:
            assert await connection.fetchval("select count(*) from agent.event where id = $1", identity) == 1
        (tmp_path / "say").touch()
