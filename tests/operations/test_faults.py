"""Faults of machines and networks that last: slow lines, killed server processes, clocks that jump, full logs."""

import asyncio
import random
import time
from contextlib import AsyncExitStack, suppress

import asyncpg
import psutil  # type: ignore[import-untyped]
import pytest

from tests.operations.load import each_ended_once, load
from tests.system.half_open import half_open
from tests.system.restartable import Restartable, restartable
from tests.system.worker import worker

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]


async def test_a_line_with_300_ms_and_two_percent_resets_loses_nothing() -> None:
    """Each packet takes 150 ms in either direction."""
    async with (
        restartable() as server,
        half_open(server.uri("surelane_worker")) as line,
        AsyncExitStack() as stack,
    ):
        for _ in range(2):
            await stack.enter_async_context(worker(line.uri))
        line.delay, line.resets = 0.15, 0.02
        stored = await stack.enter_async_context(load(line.uri.replace("surelane_worker@", "surelane@")))
        await stored.reached(30)
        async with server.connected() as connection:
            await each_ended_once(connection, stored.acknowledged[:30], within=120)
        line.delay = line.resets = 0.0


CHECKPOINTER = "select pid from pg_stat_activity where backend_type = 'checkpointer'"


async def recovered(server: Restartable, before: int) -> None:
    """Wait until the server has recovered: its checkpointer is another process than before."""
    async with asyncio.timeout(60):
        while True:
            with suppress(asyncpg.PostgresError, OSError):
                async with server.connected() as connection:
                    if await connection.fetchval(CHECKPOINTER) not in (before, None):
                        return
            await asyncio.sleep(0.1)


async def test_a_killed_process_of_the_server_costs_seconds() -> None:
    """The kernel kills a process that takes too much memory; PostgreSQL then ends all sessions and recovers."""
    async with restartable() as server, worker(server.uri()), load(server.uri()) as stored:
        for number in range(3):
            await stored.reached(50)
            async with server.connected() as connection:
                sessions = await connection.fetch(
                    "select pid from pg_stat_activity where usename = 'surelane_worker' order by pid"
                )
                before = await connection.fetchval(CHECKPOINTER)
            psutil.Process(random.Random(number).choice(sessions)["pid"]).kill()
            began = time.monotonic()
            await recovered(server, before)
            await stored.reached(1)
            async with server.connected() as connection:
                await each_ended_once(connection, stored.acknowledged)
            assert time.monotonic() - began < 60
