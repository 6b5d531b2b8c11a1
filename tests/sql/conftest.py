"""Give the queue's tests one migrated database, emptied before each, and a clock that they set."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import asyncpg
import pytest

from surelane.calls import Connection
from tests.databases import Server, as_role

TABLES = (
    "event",
    "kind_limit",
    "limit_state",
    "limit_note",
    "event_hist",
    "event_hist_outlier",
    "kind",
    "band",
    "request",
    "worker",
    "cron",
    "slack_limit",
    "step",
    "signal",
)
EMPTY = "".join(f"delete from agent.{table};" for table in TABLES)
CLOCK = """
create table agent.test_clock (shift interval not null);
insert into agent.test_clock values ('0');
create or replace function agent.clock() returns timestamptz language sql volatile parallel safe
return clock_timestamp() + (select shift from agent.test_clock);
"""

Connect = Callable[..., Awaitable[Connection]]


@pytest.fixture(scope="session")
async def queue_database(server: Server, template: str) -> AsyncIterator[str]:
    """Return the URI of the database that the queue's tests share, as its owner."""
    async with server.fresh(template) as name:
        owner = await asyncpg.connect(server.uri(name))
        await owner.execute(CLOCK)
        await owner.close()
        yield server.uri(name)


@pytest.fixture
async def connect(queue_database: str) -> AsyncIterator[Connect]:
    """Open further connections to the queue, as its owner or another role. Close them after the test."""
    async with AsyncExitStack() as stack:

        async def opened(role: str | None = None) -> Connection:
            uri = queue_database if role is None else as_role(queue_database, role)
            connection = await asyncpg.connect(uri)
            stack.push_async_callback(connection.close, timeout=5)
            return connection

        yield opened


@pytest.fixture
async def queue(connect: Connect) -> Connection:
    """Connect to the empty queue as its owner, with its clock set to now."""
    connection = await connect()
    await connection.execute(f"{EMPTY} update agent.test_clock set shift = '0'")
    return connection
