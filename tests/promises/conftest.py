"""Give the promises' tests a server to crash, and a fleet of two workers that go on from test to test."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from tests.processes import Service
from tests.system.restartable import Restartable, restartable
from tests.system.worker import ended, enqueue, worker

HANDLERS = "tests.promises.handlers:handlers"


def working(database: str, **settings: str) -> AbstractAsyncContextManager[Service]:
    """Run a worker with the promises' handlers."""
    return worker(database, SURELANE_HANDLERS=HANDLERS, **settings)


async def completed(connection: Connection, identity: int) -> Any:
    """Wait for the end of an event; return its result."""
    row = await ended(connection, identity, within=150)
    assert row["outcome"] == "completed", row
    return json.loads(row["result"] or "null")


async def becomes(connection: Connection, query: str, *given: object) -> None:
    """Ask until the answer is true."""
    async with asyncio.timeout(150):
        while not await connection.fetchval(query, *given):  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.02)


async def noted(log: Path, text: str) -> None:
    """Wait until a handler has noted something."""
    async with asyncio.timeout(150):
        while text not in _lines(log):  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.02)


def _lines(log: Path) -> list[str]:
    return log.read_text().split("\n") if log.exists() else []


@pytest.fixture(scope="package")
async def server_to_crash() -> AsyncIterator[Restartable]:
    """Run a server that tests stop, crash and freeze."""
    async with restartable() as started:
        yield started


@pytest.fixture
async def postgres(server_to_crash: Restartable) -> Restartable:
    """Give a test the server, without the events and the workers that the test before left."""
    async with server_to_crash.connected() as connection:
        await connection.execute("delete from agent.event; delete from agent.worker")
    return server_to_crash


@pytest.fixture(scope="module")
async def fleet(shared_database: str) -> AsyncIterator[list[Service]]:
    """Run two workers."""
    async with working(shared_database) as one, working(shared_database) as other:
        yield [one, other]


@pytest.fixture(scope="module")
async def queue(shared_database: str) -> AsyncIterator[Connection]:
    """Connect to the fleet's database."""
    connected = await asyncpg.connect(shared_database)
    yield connected
    await connected.close()


@pytest.fixture
def store(queue: Connection, tmp_path: Path) -> Callable[..., Awaitable[int]]:
    """Return what stores a job whose handler notes in ``tmp_path / "log"``."""

    async def stored(kind: str, group_key: str | None = None, run_in: float = 0.0, **payload: Any) -> int:
        given = {"log": str(tmp_path / "log"), **payload}
        return await enqueue(queue, kind, given, group_key=group_key, run_in=run_in)

    return stored
