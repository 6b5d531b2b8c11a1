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
from tests.system.half_open import Proxy, half_open
from tests.system.ingest_client import Slack, mention, settings
from tests.system.restartable import Restartable, restartable
from tests.system.test_doctor import doctor
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
    async with primary.connected() as source, standby.connected() as copy, asyncio.timeout(60):
        position = await source.fetchval("select pg_current_wal_lsn()::text")
        while not await copy.fetchval("select pg_last_wal_replay_lsn() >= $1::text::pg_lsn", position):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def said(running: Service, text: str) -> bool:
    return any(text in line for line in running.output)


async def test_no_service_works_on_a_primary_that_a_failover_replaced(
    primary: Restartable, standby: Restartable, address: Proxy
) -> None:
    async with worker(address.uri) as running:
        async with primary.connected() as connection:
            await ended(connection, await enqueue(connection, "nothing"))
        await replayed(primary, standby)
        await standby.execute("select pg_promote()")
        address.lead_to(standby.uri("surelane_worker"))
        async with standby.connected() as connection:
            await ended(connection, await enqueue(connection, "nothing"), within=60)
        address.lead_to(primary.uri("surelane_worker"))
        await until(lambda: said(running, "FormerPrimary"), within=60, what="the refusal")
        async with primary.connected() as connection:
            stray = await enqueue(connection, "nothing")
            # A worker that starts now has seen no other server. This one tells it that there is another.
            async with worker(address.uri, ready="") as fresh:
                await until(lambda: said(fresh, "FormerPrimary"), within=60, what="the refusal")
                assert (await live(connection, stray))["claimed_by"] is None
        code, out, _ = await doctor(address.uri)
        assert (code, "it was the primary before a failover" in out or "problem  timeline" in out) == (
            1,
            True,
        ), out
        address.lead_to(standby.uri("surelane_worker"))
        async with standby.connected() as connection:
            await ended(connection, await enqueue(connection, "nothing"), within=60)


async def test_ingest_stores_nothing_on_a_primary_that_a_failover_replaced(
    primary: Restartable, standby: Restartable, address: Proxy
) -> None:
    """It saw the newer timeline itself. It may not tell the server: its role has no right to."""
    async with (
        service("surelane_ingest", settings(as_role(address.uri, "surelane_ingest"))) as ingest,
        aiohttp.ClientSession() as session,
        primary.connected() as former,
    ):
        slack = Slack(session, ingest.url)

        async def send() -> int:
            return (await slack.event(mention())).status

        async def ready() -> int:
            async with session.get(ingest.private_url + "/readyz") as probe:
                return probe.status

        async def both(status: int) -> None:
            async with asyncio.timeout(60):
                while {await send(), await ready()} != {status}:  # noqa: ASYNC110 - no event says so
                    await asyncio.sleep(0.1)

        await both(200)
        await replayed(primary, standby)
        await standby.execute("select pg_promote()")
        address.lead_to(standby.uri("surelane_ingest"))
        await both(200)
        stored = await former.fetchval("select count(*) from agent.event")
        address.lead_to(primary.uri("surelane_ingest"))
        assert {await send() for _ in range(5)} == {503}
        await both(503)
        assert await former.fetchval("select count(*) from agent.event") == stored
        address.lead_to(standby.uri("surelane_ingest"))
        await both(200)


def beside(first: str, second: str) -> str:
    """Return a URI with two hosts, each behind a proxy. It names no kind of server."""
    (user, _, at), (_, _, other) = first.partition("@"), second.partition("@")
    host, _, rest = at.partition("/")
    return f"{user}@{host},{other.partition('/')[0]}/{rest}"


async def test_a_server_that_is_lost_without_a_word_keeps_no_service_from_the_next_one(
    primary: Restartable, address: Proxy
) -> None:
    """Its machine is gone, so connecting to it gets no answer, and the URI names it first."""
    async with half_open(primary.uri("surelane_worker")) as lost, aiohttp.ClientSession() as session:
        lost.swallow()
        hosts = beside(lost.uri, address.uri)
        ingest = service("surelane_ingest", settings(as_role(hosts, "surelane_ingest")))
        async with worker(hosts), ingest as running, primary.connected() as connection:
            assert (await Slack(session, running.url).event(mention())).status == 200
            await ended(connection, await enqueue(connection, "nothing"), within=60)


async def test_a_uri_with_a_standby_first_leads_services_to_the_primary(
    primary: Restartable, standby: Restartable, address: Proxy
) -> None:
    """It does not ask for a server that takes writes, because that is easily forgotten."""
    async with (
        half_open(standby.uri("surelane_worker")) as copy,
        worker(beside(copy.uri, address.uri)),
        primary.connected() as connection,
    ):
        await ended(connection, await enqueue(connection, "nothing"), within=60)


async def test_a_service_that_only_reads_does_not_stay_on_a_standby(standby: Restartable) -> None:
    """A proxy may lead to the old primary for a while. What is read there is soon out of date."""
    async with opened_pool(SecretStr(standby.uri("surelane_operator")), service="t", max_size=1) as pool:
        with pytest.raises(DatabaseUnavailable):
            await Calls(pool).row("schema_version")
