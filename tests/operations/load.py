"""Store jobs all the time, and know which ones the queue acknowledged."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

import asyncpg

from surelane.calls import Connection

ENQUEUE = "select agent.enqueue('echo', $1, _item_key => $2, _group_key => $3)"
PAUSE = 0.01
GROUPS = 7


class Load:
    """A program that stores numbered jobs one after another, and goes on after errors."""

    def __init__(self, uri: str, name: str) -> None:
        self._uri = uri
        self._name = name
        self.acknowledged: list[str] = []
        """The item keys of jobs whose call returned."""

    async def store(self) -> None:
        """Store jobs until cancelled. A job whose call failed is not acknowledged, and not sent again."""
        number = 0
        while True:
            with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
                connection = await asyncpg.connect(self._uri, timeout=5, command_timeout=5)
                try:
                    while True:
                        number += 1
                        key, group = f"{self._name}:{number}", f"T:C:{number % GROUPS}"
                        await connection.fetchval(ENQUEUE, json.dumps({"number": number}), key, group)
                        self.acknowledged.append(key)
                        await asyncio.sleep(PAUSE)
                finally:
                    connection.terminate()
            await asyncio.sleep(PAUSE)

    async def reached(self, number: int) -> None:
        """Wait until so many further jobs are acknowledged."""
        until = len(self.acknowledged) + number
        async with asyncio.timeout(60):
            while len(self.acknowledged) < until:  # noqa: ASYNC110 - a count is no event
                await asyncio.sleep(0.02)


@asynccontextmanager
async def load(uri: str, name: str = "job") -> AsyncIterator[Load]:
    """Store jobs in the background for the length of the block. Their item keys begin with ``name``."""
    running = Load(uri, name)
    task = asyncio.create_task(running.store())
    try:
        yield running
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def each_ended_once(
    connection: Connection, keys: Iterable[str], within: float = 60, outcome: str = "completed"
) -> None:
    """Wait until each of these events is in history exactly once, with this outcome, and none is live."""
    wanted, ended = sorted(set(keys)), list[str]()
    assert wanted, "nothing was stored"
    with suppress(TimeoutError):
        async with asyncio.timeout(within):
            while ended != wanted:
                await asyncio.sleep(0.1)
                ended = await connection.fetchval(
                    "select array_agg(item_key order by item_key collate \"C\") from agent.event_hist"
                    " where item_key = any($1) and outcome = $2",
                    wanted,
                    outcome,
                ) or []  # fmt: skip
    once = len(set(ended))
    assert ended == wanted, f"{len(wanted) - once} did not end, {len(ended) - once} twice"
    assert not await connection.fetchval("select count(*) from agent.event where item_key = any($1)", wanted)
