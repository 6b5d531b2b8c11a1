"""The database's volume is full: every answer is honest, logs stay short, and work goes on when there is room."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import aiohttp
import asyncpg
import pytest
from testcontainers.community.postgres import PostgresContainer

from surelane_dev.accounts import prepare, uri_of
from tests.databases import IMAGE, migrate
from tests.processes import service, until
from tests.system.ingest_client import Slack, mention, settings
from tests.system.worker import worker

pytestmark = pytest.mark.container

NAME = "surelane"
VOLUME = "size=320m"
FULL = 40.0
"""Seconds for which the volume is full."""
MOST_LINES = 12
"""Of one worker about the volume and not about an event, from the first refusal until all events have ended."""
MOST_OF_EVENT = 3
"""Lines about one event meanwhile: Slack does not answer, this cannot be noted, and the handler fails."""


@pytest.fixture
async def admin() -> AsyncIterator[str]:
    """Run a server with a small volume for its data. The write-ahead log is on another one, so the server lives."""
    container = PostgresContainer(
        IMAGE, username="postgres", password=secrets.token_hex(8), dbname="postgres", driver=None
    )
    container.with_tmpfs_mount("/var/lib/postgresql/data", VOLUME)
    container.with_env("POSTGRES_INITDB_WALDIR", "/var/lib/postgresql/wal")
    with container.with_command(["postgres", "-c", "fsync=off", "-c", "autovacuum=off"]) as running:
        uri = running.get_connection_url()
        await prepare(uri, NAME)
        await migrate(uri_of(uri, role="surelane", database=NAME))
        yield uri


async def fill(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    await connection.execute(
        "create table ballast (page text); alter table ballast alter page set storage plain"
    )
    for rows in (2000, 100, 1):
        with suppress(asyncpg.DiskFullError):
            while True:
                await connection.execute(
                    "insert into ballast select repeat('x', 7000) from generate_series(1, $1)", rows
                )


async def test_a_full_volume_refuses_events_and_loses_none(admin: str) -> None:
    database = uri_of(admin, role="surelane", database=NAME)
    owner = await asyncpg.connect(admin, database=NAME)
    async with (
        worker(database, LOG_LEVEL="info") as working,
        service("surelane_ingest", settings(uri_of(admin, role="surelane_ingest", database=NAME))) as ingest,
        aiohttp.ClientSession() as session,
    ):
        slack = Slack(session, ingest.url)
        sent, acknowledged = set[str](), set[str]()

        async def readiness() -> tuple[int, str]:
            async with session.get(ingest.private_url + "/readyz") as probe:
                return probe.status, await probe.text()

        async def send(words: str = "hello") -> int:
            payload = mention(channel=f"C{len(acknowledged)}", text=words)
            sent.add(payload["event_id"])
            answer = await slack.event(payload)
            if answer.status == 200:
                acknowledged.add(payload["event_id"])
            return answer.status

        assert await send() == 200
        await fill(owner)
        before = len(working.output)
        large = secrets.token_hex(50_000)  # does not compress, so it needs pages of its own
        assert await send(large) == 503
        status, why = await readiness()
        assert (status, "does not take events" in why) == (503, True)
        async with asyncio.timeout(120):
            while await send() == 200:
                pass
        await until(
            lambda: any("unavailable" in line or "failed" in line for line in working.output[before:]),
            within=60,
            what="the worker's first refusal",
        )
        end = time.monotonic() + FULL
        while time.monotonic() < end:
            assert await send(large) == 503
            assert (await readiness())[0] == 503
            await asyncio.sleep(0.5)
        logged = [json.loads(line).get("event_id") for line in working.output[before:]]
        assert logged.count(None) <= MOST_LINES, "\n".join(working.output[before:])
        assert all(logged.count(event) <= MOST_OF_EVENT for event in logged if event)
        await owner.execute("drop table ballast")
        await owner.execute("checkpoint")
        async with asyncio.timeout(60):
            while await send(large) != 200:  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0.2)
            while (await readiness())[0] != 200:  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0.2)
            while await owner.fetchval("select exists (select from agent.event)"):  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0.1)
        ended = await owner.fetch("select item_key from agent.event_hist where item_key like 'Ev%'")
        keys = [row["item_key"] for row in ended]
        assert len(set(keys)) == len(keys)
        assert acknowledged <= set(keys) <= sent  # an event may be stored although its answer was late
        lines = [line for line in working.output[before:] if '"event_id"' not in line]
        assert len(lines) <= MOST_LINES, "\n".join(lines)
    await owner.close()
