"""Start workers, store events, and wait for their outcomes."""

import asyncio
import json
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

import aiohttp
import asyncpg

from surelane.calls import Connection
from tests.databases import as_role
from tests.processes import Service, service

HANDLERS = "tests.system.worker_handlers:handlers"
LEASE = "3s"
"""Short, but long enough for a worker on a busy machine to renew it."""
HOLDERS = """
select l.pid from agent.worker as w join pg_locks as l on l.objid = w.session::oid
where l.locktype = 'advisory' and l.classid = agent.session_class()::oid and w.name = $1
"""
"""The server's process that holds a worker's session: of the connection over which it claims."""


def environment(database: str, **settings: str) -> dict[str, str]:
    """Return a worker's settings: the tests' handlers, a missing Slack without limits, short pauses.

    People are told of no failure: that reply, an event of its own, could take the fault of the next test.
    """
    return {
        "DATABASE_URL": as_role(database, "surelane_worker"),
        "SURELANE_HANDLERS": HANDLERS,
        "SLACK_API_URL": "http://127.0.0.1:9/api/",
        "SURELANE_BACKOFF_BASE": "50ms",
        "SURELANE_SLACK_LIMITS": "off",
        "SURELANE_FAILURE_REPLY": "off",
        **settings,
    }


def worker(database: str, ready: str = "/readyz", **settings: str) -> AbstractAsyncContextManager[Service]:
    """Run a worker process. Stop it by SIGTERM at the end of the block."""
    return service("surelane_worker", environment(database, **settings), ready=ready)


async def enqueue(
    connection: Connection,
    kind: str,
    payload: object = None,
    *,
    group_key: str | None = None,
    max_attempts: int | None = None,
    run_in: float = 0.0,
) -> int:
    """Store a job that runs in ``run_in`` seconds."""
    identity: int = await connection.fetchval(
        "select agent.enqueue($1, $2, _group_key => $3, _max_attempts => $4, _run_at => agent.clock() + $5)",
        kind,
        json.dumps(payload if payload is not None else {}),
        group_key,
        max_attempts,
        timedelta(seconds=run_in),
    )
    return identity


async def ended(connection: Connection, identity: int, within: float = 90) -> asyncpg.Record:
    """Wait for the event's row in history, and return it."""
    try:
        async with asyncio.timeout(within):
            while True:
                row = await connection.fetchrow("select * from agent.event_hist where id = $1", identity)
                if row is not None:
                    return row
                await asyncio.sleep(0.02)
    except TimeoutError:
        live = await connection.fetchrow("select * from agent.event where id = $1", identity)
        raise AssertionError(f"event {identity} did not end within {within} s; it is {live}") from None


async def result_of(connection: Connection, identity: int) -> Any:
    """Wait for the end of an event; return its result."""
    row = await ended(connection, identity)
    assert row["outcome"] == "completed", row
    return json.loads(row["result"] or "null")


async def suspended(connection: Connection, identity: int) -> None:
    """Wait until an event is suspended."""
    reason = None
    async with asyncio.timeout(60):
        while reason != "suspended":
            reason = await connection.fetchval("select reason from agent.why_waiting($1)", identity)
            await asyncio.sleep(0.01)


async def claimed(connection: Connection, identity: int, within: float = 90) -> asyncpg.Record:
    """Wait until a worker has claimed the event, and return its row."""
    async with asyncio.timeout(within):
        while True:
            row = await connection.fetchrow(
                "select * from agent.event where id = $1 and claimed_by is not null", identity
            )
            if row is not None:
                return row
            await asyncio.sleep(0.02)


async def live(connection: Connection, identity: int) -> asyncpg.Record:
    """Return the event's row in the live queue."""
    row = await connection.fetchrow("select * from agent.event where id = $1", identity)
    assert row is not None, f"event {identity} is no longer in the queue"
    return row


async def metrics(running: Service) -> str:
    """Return the worker's metrics as text."""
    async with aiohttp.ClientSession() as session, session.get(f"{running.private_url}/metrics") as response:
        return await response.text()
