"""In any outage of the database, each answer is 200 for a stored event, or makes Slack try again."""

import asyncio
import signal
from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.processes import Service, service
from tests.system.ingest_client import Slack, mention, settings
from tests.system.restartable import NAME, Restartable, restartable

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
    async with asyncio.timeout(60):
        while (await slack.event(refused)).status != 200:  # noqa: ASYNC110 - as Slack does
            await asyncio.sleep(0.2)
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
        async with asyncio.timeout(60):
            while (await slack.event(mention())).status != 200:  # noqa: ASYNC110 - as Slack does
                await asyncio.sleep(0.2)


async def _until_listening(session: aiohttp.ClientSession, ingest: Service) -> None:
    """Wait for both ports. The public one opens last."""
    async with asyncio.timeout(60):
        while True:
            try:
                async with session.get(ingest.private_url + "/livez"), session.get(ingest.url + "/"):
                    return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.05)
