"""In any outage of the database, each answer is 200 for a stored event, or makes Slack try again."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from surelane.calls import Connection
from tests.processes import Service, service, until
from tests.system.ingest_client import Slack, event_id, mention, settings
from tests.system.restartable import NAME, Restartable, restartable

RETRY_DELAYS = (0.0, 0.3, 1.0)
"""Slack's three retries, which come at once, after a minute and after five, shortened."""
CUT = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'surelane-ingest'"
BUDGET = "1s"
"""Half of the default, so that Slack's three seconds hold on a busy machine too."""


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[Restartable]:
    async with restartable() as started:
        yield started


@pytest.fixture
async def postgres(server: Restartable) -> AsyncIterator[Restartable]:
    yield server
    async with server.connected() as connection:
        await connection.execute("delete from agent.event; delete from agent.kind")


@pytest.fixture
async def ingest(postgres: Restartable) -> AsyncIterator[Service]:
    env = settings(postgres.uri("surelane_ingest"), LOG_LEVEL="info", SURELANE_DATABASE_BUDGET=BUDGET)
    async with service("surelane_ingest", env) as running:
        yield running


@pytest.fixture
async def slack(ingest: Service) -> AsyncIterator[Slack]:
    async with aiohttp.ClientSession() as session:
        yield Slack(session, ingest.url)


async def stored(connection: Connection) -> list[str]:
    """Return the event ids in the queue, one per row."""
    return [row["item_key"] for row in await connection.fetch("select item_key from agent.event order by 1")]


class Sender:
    """Send events as Slack does: again after an error, at most three times.

    Slack's last retry comes long after a restart, so it waits for the restart here too.
    """

    def __init__(self, slack: Slack) -> None:
        self._slack = slack
        self._last_retries = asyncio.Event()
        self._last_retries.set()
        self.acknowledged: set[str] = set()
        self.given_up: set[str] = set()

    @asynccontextmanager
    async def last_retries_wait(self) -> AsyncIterator[None]:
        self._last_retries.clear()
        yield
        self._last_retries.set()

    async def deliver(self, payload: dict[str, Any] | None = None) -> None:
        """Send an event until it is acknowledged or Slack would give up."""
        payload = payload or mention(channel=f"C{event_id()}")
        identity = payload["event_id"]
        for attempt, delay in enumerate((None, *RETRY_DELAYS)):
            if delay is not None:
                await asyncio.sleep(delay)
            if attempt == len(RETRY_DELAYS):
                await self._last_retries.wait()
            retry = {"x-slack-retry-num": str(attempt), "x-slack-retry-reason": "http_error"}
            headers = {} if delay is None else retry
            answer = await self._slack.event(payload, **headers)
            assert answer.status in (200, 503), answer
            assert not answer.no_retry
            if answer.status == 200:
                self.acknowledged.add(identity)
                return
        self.given_up.add(identity)

    async def deliver_until(self, stop: asyncio.Event) -> None:
        """Send one event after another."""
        while not stop.is_set():
            await self.deliver()


async def acknowledged_more(sender: Sender, number: int) -> None:
    """Wait for a number of further acknowledged events."""
    goal = len(sender.acknowledged) + number
    await until(lambda: len(sender.acknowledged) >= goal, within=60, what=f"{goal} acknowledged events")


@pytest.mark.parametrize(
    ("how", "rounds", "more"), [(signal.SIGINT, 3, 50), (None, 10, 20)], ids=["fast", "killed connections"]
)
async def test_restarts_and_killed_connections_lose_no_acknowledged_event(
    postgres: Restartable, slack: Slack, how: signal.Signals | None, rounds: int, more: int
) -> None:
    sender, stop = Sender(slack), asyncio.Event()
    work = asyncio.gather(*(sender.deliver_until(stop) for _ in range(8)))
    for _ in range(rounds):
        await acknowledged_more(sender, more)
        async with sender.last_retries_wait():
            await (postgres.execute(CUT) if how is None else postgres.restart(how))
    await acknowledged_more(sender, more)
    stop.set()
    await work
    async with postgres.connected() as connection:
        rows = await stored(connection)
    assert sorted(rows) == sorted(sender.acknowledged), (
        "an acknowledged event was lost, or one is there twice"
    )
    assert not sender.given_up


async def test_a_service_whose_connections_were_cut_while_idle_ends_when_it_is_told_to(
    postgres: Restartable, ingest: Service, slack: Slack
) -> None:
    assert (await slack.event(mention())).status == 200
    await postgres.execute(CUT)
    assert await ingest.child.stop(signal.SIGTERM, 20) == 0


async def test_a_service_that_refuses_every_event_is_not_ready(
    postgres: Restartable, ingest: Service, slack: Slack
) -> None:
    assert (await slack.event(mention())).status == 200
    await postgres.execute(f"alter database {NAME} set default_transaction_read_only = on")
    await postgres.execute(CUT)
    refused = mention()
    assert (await slack.event(refused)).status == 503
    async with slack.session.get(ingest.private_url + "/readyz") as unready:
        assert (unready.status, "does not take events" in await unready.text()) == (503, True)
    await postgres.execute(f"alter database {NAME} reset default_transaction_read_only")
    sender = Sender(slack)
    await sender.deliver(refused)
    assert sender.acknowledged
    async with asyncio.timeout(60):
        while (await slack.session.get(ingest.private_url + "/readyz")).status != 200:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.2)


async def test_a_service_starts_without_its_database_and_serves_when_it_comes(postgres: Restartable) -> None:
    uri = postgres.uri("surelane_ingest")
    await postgres.stop()
    async with (
        service("surelane_ingest", settings(uri, SURELANE_DATABASE_BUDGET=BUDGET), ready="") as ingest,
        aiohttp.ClientSession() as session,
    ):
        slack = Slack(session, ingest.url)
        await _until_listening(session, ingest)
        async with asyncio.timeout(60):
            answer = await slack.event(mention())
        assert answer.status == 503
        async with session.get(ingest.private_url + "/readyz") as unready:
            assert unready.status == 503
        await postgres.start()
        sender = Sender(slack)
        await sender.deliver()
        assert sender.acknowledged


async def _until_listening(session: aiohttp.ClientSession, ingest: Service) -> None:
    """Wait for both ports. The public one opens last."""
    async with asyncio.timeout(60):
        while True:
            try:
                async with session.get(ingest.private_url + "/livez"), session.get(ingest.url + "/"):
                    return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.05)
