"""What the worker's system tests share: starting workers, storing events, waiting for how they ended."""

import asyncio
import json
from contextlib import AbstractAsyncContextManager
from typing import Any

import asyncpg

from surelane.pool import Connection
from tests.databases import as_role
from tests.processes import Service, service

HANDLERS = "tests.system.worker_handlers:handlers"


def environment(database: str, **settings: str) -> dict[str, str]:
    """A worker's settings: the test handlers, a Slack that does not exist, short pauses."""
    return {
        "DATABASE_URL": as_role(database, "surelane_worker"),
        "SURELANE_HANDLERS": HANDLERS,
        "SLACK_API_URL": "http://127.0.0.1:9/api/",
        "SURELANE_BACKOFF_BASE": "50ms",
        **settings,
    }


def worker(database: str, **settings: str) -> AbstractAsyncContextManager[Service]:
    """A running worker process, stopped by SIGTERM at the end of the block."""
    return service("surelane_worker", environment(database, **settings))


async def enqueue(connection: Connection, kind: str, payload: object = None, **columns: Any) -> int:
    """Stores an event of a kind; ``columns`` override its other columns."""
    values = {"event_ts": None, "group_key": None, "max_attempts": None, **columns}
    identity: int = await connection.fetchval(
        "insert into agent.event (event_ts, event, kind, group_key, max_attempts, vt)"
        " values (coalesce($1, now()), $2, $3, $4, $5, coalesce($6, now())) returning id",
        values["event_ts"],
        json.dumps(payload if payload is not None else {}),
        kind,
        values["group_key"],
        values["max_attempts"],
        values.get("vt"),
    )
    return identity


async def ended(connection: Connection, identity: int, within: float = 10) -> asyncpg.Record:
    """The event's row in history, waited for."""
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


async def claimed(connection: Connection, identity: int, within: float = 10) -> asyncpg.Record:
    """The event's row once a worker holds it, waited for."""
    async with asyncio.timeout(within):
        while True:
            row = await connection.fetchrow(
                "select * from agent.event where id = $1 and claimed_by is not null", identity
            )
            if row is not None:
                return row
            await asyncio.sleep(0.02)


async def live(connection: Connection, identity: int) -> asyncpg.Record:
    """The event's row in the live queue."""
    row = await connection.fetchrow("select * from agent.event where id = $1", identity)
    assert row is not None, f"event {identity} is not in the queue any more"
    return row
