"""What ingest promises: real processes and a real server, which crash, hang and are stopped."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from surelane_dev.simulator.posting.events import envelope, events_of
from surelane_dev.simulator.workspace.model import Posted
from tests.processes import Service, service, until
from tests.promises.conftest import becomes, working
from tests.system.ingest_client import Slack, mention, settings
from tests.system.restartable import Restartable
from tests.system.slack_stand import Stand, slack_stand
from tests.system.socket_slack import TOKEN, SocketSlack

ENDED = "select not exists (select from agent.event)"
DIED = "select exists (select from agent.worker where died_at is not null)"
HISTORY = "select item_key, outcome, attempts from agent.event_hist where kind = 'slack.app_mention'"


@asynccontextmanager
async def ingest(postgres: Restartable) -> AsyncIterator[Service]:
    """Run ingest with a server that may crash."""
    env = settings(postgres.uri("surelane_ingest"), SURELANE_DATABASE_BUDGET="2s", LOG_LEVEL="info")
    async with service("surelane_ingest", env) as running:
        yield running


@dataclass
class People:
    """Post mentions as Slack does: each again until it is answered 200."""

    session: aiohttp.ClientSession
    make: Callable[[int], dict[str, Any]]
    """Returns a new mention in a thread."""
    url: str = ""
    stored: set[str] = field(default_factory=set)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def post(self, thread: int) -> None:
        """Post one mention after another in a thread. Post each second one twice."""
        number = 0
        while not self.stop.is_set():
            number += 1
            sent = self.make(thread)
            for _ in range(1 + number % 2):
                while not await self._takes(sent):  # noqa: ASYNC110 - as Slack does
                    await asyncio.sleep(0.05)
            self.stored.add(sent["event_id"])
            await asyncio.sleep(0.03)  # the rate of the mentions

    async def _takes(self, sent: dict[str, Any]) -> bool:
        with suppress(aiohttp.ClientError, asyncio.TimeoutError):
            answer = await Slack(self.session, self.url).event(sent)
            assert answer.status in (200, 503), answer
            assert not answer.no_retry
            return answer.status == 200
        return False

    async def more(self, number: int) -> None:
        """Wait until so many more are stored."""
        goal = len(self.stored) + number
        await until(lambda: len(self.stored) >= goal, within=90, what=f"{goal} stored events")


@asynccontextmanager
async def people(make: Callable[[int], dict[str, Any]], threads: int = 4) -> AsyncIterator[People]:
    """Let people post in threads until the end of the block, and what they posted be stored."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        posting = People(session, make)
        async with asyncio.TaskGroup() as group:
            for thread in range(1, threads + 1):
                group.create_task(posting.post(thread))
            try:
                yield posting
            finally:
                posting.stop.set()


def in_threads(slack: Stand, threads: dict[int, str]) -> Callable[[int], dict[str, Any]]:
    """Return what lets a person mention the bot in one of some threads, whose first messages' ``ts`` it notes."""
    workspace = slack.simulator.workspace
    room, ada = workspace.channel("general"), workspace.user("ada")
    assert room is not None
    assert ada is not None

    def make(thread: int) -> dict[str, Any]:
        message = workspace.post(room, ada.id, f"<@{workspace.bot.id}> hi", thread_ts=threads.get(thread))
        threads.setdefault(thread, message.ts)
        (inner,) = events_of(workspace, Posted(message), {"app_mention"})
        return envelope(workspace, inner)

    return make


@pytest.mark.promise("stored")
@pytest.mark.promise("once")
@pytest.mark.promise("recovers")
@pytest.mark.promise("replies")
async def test_what_was_answered_200_ends_once_with_its_replies_through_crashes_of_every_part(
    postgres: Restartable,
) -> None:
    async with postgres.connected() as owner, slack_stand(owner) as slack, AsyncExitStack() as stack:
        grace = {"SURELANE_SESSION_GRACE": "1s", "SLACK_API_URL": slack.api, "SURELANE_MAX_ATTEMPTS": "20"}
        threads: dict[int, str] = {}

        async def another() -> Service:
            return await stack.enter_async_context(working(postgres.uri(), **grace))

        workers, first = [await another(), await another()], await stack.enter_async_context(ingest(postgres))
        async with people(in_threads(slack, threads)) as posting:
            posting.url = first.url
            await posting.more(20)
            workers[0].child.kill()
            await another()
            await becomes(
                owner, DIED
            )  # with the crash, it would be a part of an outage, which has ten seconds
            await posting.more(20)
            await postgres.restart(signal.SIGQUIT)
            await posting.more(20)
            first.child.kill()
            posting.url = (await stack.enter_async_context(ingest(postgres))).url
            await posting.more(20)
        async with postgres.connected() as connection:
            await becomes(connection, ENDED)
            rows = await connection.fetch(HISTORY)
        assert Counter(row["item_key"] for row in rows) == Counter(posting.stored)
        assert {row["outcome"] for row in rows} == {"completed"}
        room = slack.simulator.workspace.channel("general")
        assert room is not None
        texts = Counter(reply.text for ts in threads.values() for reply in room.replies(ts))
        assert (texts["first"], texts["second"]) == (len(rows), len(rows))


@pytest.mark.promise("refused")
async def test_what_a_hanging_database_cannot_store_is_answered_503_and_taken_later(
    postgres: Restartable,
) -> None:
    async with ingest(postgres) as running, aiohttp.ClientSession() as session:
        slack, sent = Slack(session, running.url), [mention(channel=f"C{number}") for number in range(5)]
        assert (await slack.event(mention())).status == 200
        postgres.freeze()
        try:
            async with asyncio.timeout(90):  # the database answers only after that
                answers = await asyncio.gather(*(slack.event(each) for each in sent))
        finally:
            postgres.thaw()
        assert [(answer.status, answer.no_retry) for answer in answers] == [(503, False)] * 5
        async with asyncio.timeout(90):
            for each in sent:
                while (await slack.event(each)).status != 200:  # noqa: ASYNC110 - as Slack does
                    await asyncio.sleep(0.1)
        async with postgres.connected() as connection:
            for each in sent:
                query = "select count(*) from agent.event where item_key = $1"
                assert await connection.fetchval(query, each["event_id"]) == 1


@pytest.mark.promise("socket mode")
async def test_an_envelope_is_acknowledged_once_it_is_stored_and_sent_again_otherwise(
    postgres: Restartable,
) -> None:
    stored = "select count(*) = 1 from agent.event where item_key = $1"
    async with SocketSlack().served() as slack:
        env = {
            "DATABASE_URL": postgres.uri("surelane_ingest"),
            "SLACK_APP_TOKEN": TOKEN,
            "SLACK_API_URL": f"{slack.url}/api/",
            "SURELANE_SOCKET_CONNECTIONS": "1",
        }
        first, second = mention(), mention()
        async with service("surelane_ingest", env) as running, postgres.connected() as connection:
            wire = await slack.wire()
            sent = await wire.send(first)
            assert (await wire.acknowledgement())["envelope_id"] == sent
            assert await connection.fetchval(stored, first["event_id"])
        async with service("surelane_ingest", env) as running:
            wire = await slack.wire()
            postgres.freeze()
            try:
                await wire.send(second)
                running.child.kill()
                await asyncio.wait_for(wire.ended.wait(), 90)
            finally:
                postgres.thaw()
            assert wire.acknowledged.empty()
        async with service("surelane_ingest", env), postgres.connected() as connection:
            wire = await slack.wire()
            await wire.send(second, retry_attempt=1, retry_reason="timeout")
            await wire.acknowledgement()
            assert await connection.fetchval(stored, second["event_id"])


@pytest.mark.promise("stops")
async def test_ingest_that_is_stopped_under_load_loses_nothing(postgres: Restartable) -> None:
    async with ingest(postgres) as first, ingest(postgres) as second:
        async with people(lambda _: mention()) as posting:
            posting.url = first.url
            await posting.more(30)
            first.process.send_signal(signal.SIGTERM)
            posting.url = second.url
            assert await asyncio.wait_for(first.child.wait(), 90) == 0
            await posting.more(30)
        async with postgres.connected() as connection:
            rows = await connection.fetch(
                "select item_key from agent.event where item_key = any($1)", list(posting.stored)
            )
    assert Counter(row["item_key"] for row in rows) == Counter(posting.stored)
