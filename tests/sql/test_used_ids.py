"""An id of the operator's page is used once, by whichever process asks first, and is forgotten long after its end."""

import asyncio

from surelane.calls import Connection
from tests.sql.conftest import Connect
from tests.sql.queue_steps import waits_for_lock

USE = "select agent.use_id($1, now() + interval '10 minutes')"
LOOK = "select agent.use_id($1, null)"


async def test_an_id_is_used_once_and_looking_at_it_does_not_use_it(queue: Connection) -> None:
    assert [await queue.fetchval(LOOK, "a") for _ in range(2)] == [True, True]
    assert [await queue.fetchval(USE, "a") for _ in range(2)] == [True, False]
    assert not await queue.fetchval(LOOK, "a")
    assert await queue.fetchval(LOOK, "b")
    use = "select agent.use_id($1, now() - $2::text::interval)"
    for identity, ago in (("old", "2 hours"), ("late", "30 minutes"), ("new", "-1 minute")):
        assert await queue.fetchval(use, identity, ago)
    left = await queue.fetchval("select array_agg(id order by id) from agent.used_id")
    assert left == ["a", "late", "new"], "those that expired long ago are forgotten"


async def test_one_of_two_processes_is_first(queue: Connection, connect: Connect) -> None:
    first, second = await connect(), await connect()
    async with first.transaction():
        assert await first.fetchval(USE, "a")
        waiting = asyncio.create_task(second.fetchval(USE, "a"))
        await waits_for_lock(queue, second)
    assert not await waiting
