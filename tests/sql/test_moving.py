"""A workspace moves to another installation."""

import asyncio

from surelane.calls import Connection
from surelane_operator.moving import BLOCK, move
from tests.databases import Databases, Server
from tests.sql.migrations import connected
from tests.sql.queue_steps import claim, complete, ending, enqueue, pair


async def test_what_runs_ends_before_it_and_what_waits_behind_it_move(
    queue: Connection, other: Connection, server: Server, databases: Databases
) -> None:
    waits = asyncio.Event()
    given = {"payload": '{"team_id": "T1"}', "group_key": "a thread"}
    first = await enqueue(queue, **given)
    (row,) = await claim(queue)
    second = await enqueue(queue, **given)
    async with databases.lent() as name, connected(server.uri(name)) as target:
        await target.execute(f"select setval('agent.event_id_seq', {BLOCK})")
        moving = asyncio.create_task(move(other, target, "T1", lambda _: waits.set()))
        waiting = asyncio.create_task(waits.wait())
        await asyncio.wait((moving, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        assert await target.fetchval("select count(*) from agent.event") == 0
        assert await complete(queue, pair(row)) == ["done"]
        await moving
        assert await ending(target, first) == ("completed", None)
        assert await target.fetchval("select array_agg(id) from agent.event") == [second]
