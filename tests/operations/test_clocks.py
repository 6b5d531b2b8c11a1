"""The clock of the database jumps, as after a suspend, a restored machine or a wrong time server.

Every function of the queue reads the time from ``agent.clock()``, which is what jumps here.
"""

import pytest

from tests.docs.blocks import blocks
from tests.operations.load import each_ended_once, load
from tests.system.restartable import Restartable, restartable
from tests.system.worker import worker

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]

HOUR = 3600
DELAYED = "select item_key from agent.event where enqueued_at > agent.clock() and claimed_by is null"
WITHIN = 60.0
"""Seconds after a jump in which everything that was stored so far has ended."""


async def jump(server: Restartable, seconds: int) -> None:
    """Let the database's clock show a time so many seconds ahead of the machine's."""
    async with server.connected() as connection:
        await connection.execute(
            "create or replace function agent.clock() returns timestamptz language sql volatile parallel safe"
            f" return pg_catalog.clock_timestamp() + interval '{seconds} seconds'"
        )


async def test_what_a_jump_back_delays_is_found_and_started_by_the_runbook() -> None:
    """Events that no worker has claimed at the jump wait for their time. All others end."""
    async with restartable() as server, load(server.uri()) as stored:
        async with worker(server.uri()):
            await stored.reached(30)
        await stored.reached(30)
        await jump(server, -HOUR)
        async with worker(server.uri()), server.connected() as connection:
            delayed = {row["item_key"] for row in await connection.fetch(DELAYED)}
            await stored.reached(30)
            stored_so_far = set(stored.acknowledged)
            assert len(delayed) >= 29
            await each_ended_once(connection, stored_so_far - delayed, within=WITHIN)
            (start,) = [block.code for block in blocks("sql") if "agent.reschedule_event(" in block.code]
            await connection.execute(start)
            await each_ended_once(connection, delayed, within=WITHIN)
