"""The volume of the write-ahead log is full: PostgreSQL panics, and may not start again.

Nothing acknowledged is lost, and work goes on when there is room.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import aiohttp
import asyncpg
import pytest
from testcontainers.community.postgres import PostgresContainer

from surelane_dev.accounts import prepare, uri_of
from tests.databases import IMAGE, migrate
from tests.operations.load import each_ended_once
from tests.processes import service
from tests.system.ingest_client import Slack, mention, settings
from tests.system.restartable import NAME
from tests.system.worker import worker

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]

LOG = "/var/lib/postgresql/log"
VOLUME = "size=144m"
BALLAST = f"{LOG}/ballast"
"""Takes 48 MB of the volume. Removing it makes room, as an operator does who enlarges the volume."""
SETTINGS = "-c fsync=off -c max_wal_size=1GB -c checkpoint_timeout=1h"
AGAIN = f"""
while :; do
    docker-entrypoint.sh postgres {SETTINGS}
    [ -L "$PGDATA/pg_wal" ] || {{ mv "$PGDATA/pg_wal" {LOG}/wal && ln -s {LOG}/wal "$PGDATA/pg_wal"; }}
    sleep 1
done
"""
"""Starts the server again whenever it ends, the first time with its log on the small volume."""
STOP = ["sh", "-c", 'kill -INT "$(head -1 "$PGDATA/postmaster.pid")"']


@pytest.fixture
async def container() -> AsyncIterator[PostgresContainer]:
    made = PostgresContainer(
        IMAGE, username="postgres", password=secrets.token_hex(8), dbname="postgres", driver=None
    )
    made.with_tmpfs_mount(LOG, VOLUME)
    with made.with_command(["sh", "-c", AGAIN]) as running:
        yield running


async def moved(container: PostgresContainer) -> None:
    """Restart the server with its log on the small volume; return when it answers."""
    assert container.exec(STOP).exit_code == 0
    async with asyncio.timeout(60):
        while container.exec(["sh", "-c", f'[ -L "$PGDATA/pg_wal" ] && ls {LOG}/wal']).exit_code != 0:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        while True:
            with suppress(asyncpg.PostgresError, OSError):
                await (await asyncpg.connect(container.get_connection_url())).close()
                return
            await asyncio.sleep(0.2)


async def write_until_panic(uri: str) -> None:
    """Write more than the log's volume holds, until the server ends the connection."""
    with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        connection = await asyncpg.connect(uri)
        await connection.execute("create table if not exists ballast (page text)")
        while True:
            await connection.execute(
                "insert into ballast select repeat(md5(g::text), 60) from generate_series(1, 5000) as g"
            )


async def sent(send: Callable[[], Awaitable[int]]) -> int:
    """Send until it is answered 200, as Slack does, for a minute and a half at most."""
    async with asyncio.timeout(90):
        while (status := await send()) != 200:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.5)
    return status


async def test_a_full_log_loses_nothing_and_work_goes_on_with_room(container: PostgresContainer) -> None:
    admin = container.get_connection_url()
    owner = uri_of(admin, role="surelane", database=NAME)
    await prepare(admin, NAME)
    await migrate(owner)
    await moved(container)
    assert container.exec(["dd", "if=/dev/zero", f"of={BALLAST}", "bs=1M", "count=48"]).exit_code == 0
    async with (
        worker(owner),
        service("surelane_ingest", settings(uri_of(admin, role="surelane_ingest", database=NAME))) as ingest,
        aiohttp.ClientSession() as session,
    ):
        slack, acknowledged = Slack(session, ingest.url), list[str]()

        async def send() -> int:
            payload = mention(channel=f"C{len(acknowledged)}")
            answer = await slack.event(payload)
            if answer.status == 200:
                acknowledged.append(payload["event_id"])
            return answer.status

        assert await sent(send) == 200
        filling = asyncio.create_task(write_until_panic(admin))
        while not filling.done():
            await send()  # stored, or refused while the server is away
            await asyncio.sleep(0.1)
        assert container.exec(["rm", BALLAST]).exit_code == 0
        assert await sent(send) == 200
        assert sum(output.count(b"PANIC") for output in container.get_logs()) > 0
        connection = await asyncpg.connect(owner)
        # Slack is away, so each is tried three times.
        await each_ended_once(connection, acknowledged, within=150, outcome="failed")
        await connection.close()
