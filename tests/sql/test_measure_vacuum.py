"""The session that holds back vacuum is named, even if the schema's owner may not see other roles' sessions.

The slow tests wait until theirs does so. On a server that others use, their transactions may hold it back for longer.
"""

import json

import asyncpg
import pytest

from surelane.calls import Connection
from tests.databases import Server
from tests.sql.conftest import Connect
from tests.vacuum import holder, owner_sees_sessions, snapshot_held


@pytest.mark.slow
async def test_what_holds_back_vacuum_is_named(server: Server, queue: Connection, connect: Connect) -> None:
    async with owner_sees_sessions(server, may=True), snapshot_held(await connect("surelane_ingest")) as pid:
        began = await queue.fetchval("select extract(epoch from now())::float8")
        found = await holder(queue, pid)
    assert (found["holder"], found["application"], found["state"]) == (
        "session",
        "a report",
        "idle in transaction",
    )
    assert found["since"] == pytest.approx(began, abs=60)


@pytest.mark.slow
async def test_a_hidden_session_ages_once_seen(server: Server, queue: Connection, connect: Connect) -> None:
    async with owner_sees_sessions(server, may=False), snapshot_held(await connect("surelane_ingest")) as pid:
        first = await holder(queue, pid)
        assert (first["application"], first["state"]) == ("a report", None)
        await queue.execute("update agent.test_clock set shift = '1 hour'")
        later = await holder(queue, pid)
    assert later["since"] == first["since"]


@pytest.mark.slow
async def test_another_database_counts_by_writes(server: Server, queue: Connection, connect: Connect) -> None:
    async with owner_sees_sessions(server, may=True), server.fresh() as other:
        elsewhere = await asyncpg.connect(server.uri(other))
        async with snapshot_held(elsewhere) as pid, elsewhere.transaction():
            async with snapshot_held(await connect(), "here") as here:
                await holder(queue, here)
            await elsewhere.execute("create table written ()")
            assert (await holder(queue, pid))["application"] == "a report"
        await elsewhere.close()


async def test_what_only_waits_between_statements_holds_nothing(queue: Connection, connect: Connect) -> None:
    idle = await connect("surelane_ingest")
    pid = await idle.fetchval("select pg_backend_pid()")
    async with idle.transaction():
        await idle.execute("select 1")
        await queue.execute("update agent.measurement set due = '-infinity'")
        found = json.loads(await queue.fetchval("select agent.measure_queue()"))["holder"]
    assert found is None or found["pid"] != pid
