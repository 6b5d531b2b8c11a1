"""Sessions that hold back vacuum, and what the queue's figures say of them."""

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
    """For the length of the block the owner is a member of pg_read_all_stats, or is not."""
    grant, revoke = f"grant {READ_STATS} to surelane", f"revoke {READ_STATS} from surelane"
    admin = await asyncpg.connect(server.admin)
    try:
        before = await admin.fetchval(f"select pg_has_role('surelane', '{READ_STATS}', 'member')")
        await admin.execute(grant if may else revoke)
        yield
        await admin.execute(grant if before else revoke)
    finally:
        await admin.close()


@asynccontextmanager
async def snapshot_held(connection: Connection, name: str = "a report") -> AsyncIterator[int]:
    """A transaction that reads and stays open; yields its pid."""
    await connection.execute(f"set application_name = '{name}'")
    async with connection.transaction(isolation="repeatable_read"):
        yield await connection.fetchval("select pg_backend_pid()")


async def holder(queue: Connection, pid: int) -> dict[str, Any]:
    """What holds back vacuum, once it is this session: an automatic analyze may for a moment."""
    async with asyncio.timeout(30):
        while True:
            await queue.execute("update agent.measurement set due = '-infinity'")
            found = json.loads(await queue.fetchval("select agent.measure_queue()"))["holder"]
            if found is not None and found["pid"] == pid:
                return dict(found)
            await asyncio.sleep(0.1)
