"""A standby takes over, and the old primary comes back: real servers, behind the one address that services know."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from pydantic import SecretStr

from surelane.calls import Calls
from surelane.errors import DatabaseUnavailable
from surelane_service.pool import opened_pool
from tests.databases import as_role
from tests.processes import Service, service, until
from tests.sql.migrations import becomes
from tests.system.half_open import Proxy, half_open
from tests.system.ingest_client import Slack, mention, settings
from tests.system.restartable import Restartable, restartable
from tests.system.test_cli import Command
from tests.system.worker import ended, enqueue, live, worker


@pytest.fixture
async def primary() -> AsyncIterator[Restartable]:
    async with restartable() as started:
        yield started


@pytest.fixture
async def standby(primary: Restartable, tmp_path: Path) -> AsyncIterator[Restartable]:
    copy = await primary.copy(tmp_path / "standby")
    try:
        await copy.start()
        yield copy
    finally:
        await copy.aclose()


@pytest.fixture
async def address(primary: Restartable) -> AsyncIterator[Proxy]:
    async with half_open(primary.uri("surelane_worker")) as proxy:
        yield proxy


async def replayed(primary: Restartable, standby: Restartable) -> None:
    """Wait until the standby has everything that the primary committed."""
    async with primary.connected() as source, standby.connected() as copy:
        position = await source.fetchval("select pg_current_wal_lsn()::text")
        await becomes(copy, "select pg_last_wal_replay_lsn() >= $1::text::pg_lsn", position)


def said(running: Service, text: str) -> bool:
    return any(text in line for line in running.output)


async def test_no_service_works_on_a_primary_that_a_failover_replaced(
    primary: Restartable, standby: Restartable, address: Proxy
) -> None:
    """First ingest, which saw the newer timeline itself. Its role may not tell the server."""
    async with (
        service("surelane_ingest", settings(as_role(address.uri, "surelane_ingest"))) as ingest,
        aiohttp.ClientSession() as session,
        primary.connected() as former,
        standby.connected() as later,
    ):
        slack = Slack(session, ingest.url)

        async def send() -> int:
            return (await slack.event(mention())).status

        async def both(status: int) -> None:
            async with asyncio.timeout(60):
                while await send() != status:  # noqa: ASYNC110 - no event says so
                    await asyncio.sleep(0.1)
                while (await session.get(ingest.private_url + "/readyz")).status != status:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)

        await both(200)
        await replayed(primary, standby)
        await standby.execute("select pg_promote()")
        address.lead_to(standby.uri())
        await both(200)
        stored = await former.fetchval("select count(*) from agent.event")
        address.lead_to(primary.uri())
        assert {await send() for _ in range(5)} == {503}
        await both(503)
        assert await former.fetchval("select count(*) from agent.event") == stored
        address.lead_to(standby.uri())
        await both(200)
        async with worker(address.uri) as running:
            await ended(later, await enqueue(later, "nothing"), within=60)
            address.lead_to(primary.uri())
            await until(lambda: said(running, "FormerPrimary"), within=60, what="the refusal")
            stray = await enqueue(former, "nothing")
            # A worker that starts now has seen no other server. This one tells it that there is another.
            async with worker(address.uri, ready="") as fresh:
                await until(lambda: said(fresh, "FormerPrimary"), within=60, what="the refusal")
                assert (await live(former, stray))["claimed_by"] is None
            doctor = await Command(address.uri)("doctor")
            told = "it was the primary before a failover" in doctor.out or "problem  timeline" in doctor.out
            assert (doctor.code, told) == (1, True), doctor.out
            address.lead_to(standby.uri())
            await ended(later, await enqueue(later, "nothing"), within=60)


async def test_services_find_the_primary_behind_a_lost_server_and_a_standby(
    primary: Restartable, standby: Restartable, address: Proxy
) -> None:
    """The URI asks for no kind of server. The machine that it names first is gone, and answers nothing."""
    async with (
        half_open(primary.uri("surelane_worker")) as lost,
        half_open(standby.uri("surelane_worker")) as copy,
        aiohttp.ClientSession() as session,
        primary.connected() as connection,
    ):
        lost.swallow()
        hosts = lost.uri.replace(
            f":{lost.port}", f":{lost.port},127.0.0.1:{copy.port},127.0.0.1:{address.port}"
        )
        ingest = service("surelane_ingest", settings(as_role(hosts, "surelane_ingest")))
        async with worker(hosts), ingest as running:
            assert (await Slack(session, running.url).event(mention())).status == 200
            await ended(connection, await enqueue(connection, "nothing"), within=60)
    # A proxy may lead to a standby for a while. What is read there is soon out of date.
    async with opened_pool(SecretStr(standby.uri("surelane_operator")), service="t", max_size=1) as pool:
        with pytest.raises(DatabaseUnavailable):
            await Calls(pool).row("schema_version")
