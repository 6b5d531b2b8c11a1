"""Hold back vacuum, and read the queue's figures about it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from surelane.calls import Connection
from tests.databases import Server

READ_STATS = "pg_read_all_stats"


@asynccontextmanager
async def owner_sees_sessions(server: Server, *, may: bool) -> AsyncIterator[None]:
    """Make the owner a member of pg_read_all_stats for the length of the block, or not.

    All databases of a server share its roles, so one test at a time does so.
    """
    grant, revoke = f"grant {READ_STATS} to surelane", f"revoke {READ_STATS} from surelane"
    admin = await asyncpg.connect(server.admin)
    try:
        await admin.execute("select pg_advisory_lock(hashtext('surelane tests: owner sees sessions'))")
        before = await admin.fetchval(f"select pg_has_role('surelane', '{READ_STATS}', 'member')")
        await admin.execute(grant if may else revoke)
        yield
        await admin.execute(grant if before else revoke)
    finally:
        await admin.close()


@asynccontextmanager
async def snapshot_held(connection: Connection, name: str = "a report") -> AsyncIterator[int]:
    """Keep a reading transaction open for the length of the block; yield its pid."""
    await connection.execute(f"set application_name = '{name}'")
    async with connection.transaction(isolation="repeatable_read"):
        yield await connection.fetchval("select pg_backend_pid()")


async def holder(queue: Connection, pid: int) -> dict[str, Any]:
    """Wait until this session holds back vacuum; return the figures. Others may do so for a moment."""
    async with asyncio.timeout(60):
        while True:
            await queue.execute("update agent.measurement set due = '-infinity'")
            found = json.loads(await queue.fetchval("select agent.measure_queue()"))["holder"]
            if found is not None and found["pid"] == pid:
                return dict(found)
            await asyncio.sleep(0.1)
