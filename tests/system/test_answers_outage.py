"""The database goes away while requests wait for their answers: Slack gets an answer in time, and no event is lost."""

import asyncio
import signal
from itertools import count
from pathlib import Path

from surelane.calls import Connection
from surelane_ingest.answers import Patience
from tests.system.ingest_client import served
from tests.system.restartable import restartable
from tests.system.test_answers import answering, command
from tests.system.worker import ended

HELD = "select id from agent.event where kind = 'slack.command.hold-answer' and claimed_by is not null"


async def held(connection: Connection) -> int:
    """Wait until a worker holds the command, and return the event's id."""
    async with asyncio.timeout(60):
        while (identity := await connection.fetchval(HELD)) is None:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.01)
    return int(identity)


async def test_while_a_request_waits_the_database_crashes_and_then_hangs(tmp_path: Path) -> None:
    say, patience = tmp_path / "say", Patience(wait=1.0)
    async with (
        restartable() as postgres,
        served(postgres.uri("surelane_ingest"), patience=patience, database_budget="2s") as running,
        answering(postgres.uri()),
    ):
        slack = running.slack
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
        say = tmp_path / "then"
        stored = asyncio.create_task(slack.form("/slack/events", command("/hold-answer", "3", str(say))))
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
        say.touch()
