"""Positions: advisory locks of the sessions that claim, which the workers of the same kinds share."""

import asyncio
from datetime import timedelta
from typing import Any

from surelane.calls import Connection
from surelane_service.engine import Engine
from surelane_service.fleet import POSITIONS
from tests.sql.queue_steps import only_row

KINDS = ["positions.one", "positions.two"]


async def test_each_session_takes_the_first_free_position(connect: Any) -> None:
    sessions = [Engine(await connect("surelane_worker")) for _ in range(POSITIONS + 1)]
    taken = [await session.take_position(KINDS, None) for session in sessions]
    assert taken == [*range(POSITIONS), None]
    reversed_kinds = Engine(await connect("surelane_worker"))
    assert await reversed_kinds.take_position(KINDS[::-1], None) is None, "the same kinds in another order"
    assert await reversed_kinds.take_position(KINDS[:1], None) == 0, "other kinds have positions of their own"


async def test_a_position_is_free_when_its_session_ends(connect: Any) -> None:
    first, second, third = [await connect("surelane_worker") for _ in range(3)]
    for session in (first, second):
        await Engine(session).take_position(KINDS, None)
    looking = Engine(third)
    assert not await _is_free(looking, before=2)
    first.terminate()
    async with asyncio.timeout(60):
        while not await _is_free(looking, before=2):  # noqa: ASYNC110 - the end of a session has no signal
            await asyncio.sleep(0.01)
    assert await Engine(second).take_position(KINDS, 1) == 0
    assert await looking.take_position(KINDS, None) == 1, "the second gave up the position that it had"


async def test_those_who_listen_hear_of_positions_that_are_taken_and_left(connect: Any) -> None:
    leaving, listening = await connect("surelane_worker"), await connect("surelane_worker")
    heard: asyncio.Queue[str] = asyncio.Queue()
    await listening.add_listener("agent_event", lambda *notice: heard.put_nowait(str(notice[3])))
    await Engine(leaving).take_position(KINDS, None)
    assert await Engine(listening).take_position(KINDS, None) == 1
    await Engine(leaving).leave_position(KINDS, 0)
    assert [await asyncio.wait_for(heard.get(), 60) for _ in range(3)] == ["taken", "taken", "free"]
    assert await Engine(listening).take_position(KINDS, 1) == 0
    await Engine(leaving).pass_on()
    async with asyncio.timeout(60):
        while await heard.get() != "full":
            pass


async def test_a_peek_brings_the_heartbeat_and_waits_for_no_one(queue: Connection, connect: Any) -> None:
    engine = Engine(await connect("surelane_worker"))
    assert await _announced(engine) is False, "it is on no list yet"
    await engine.announce_worker("touched", KINDS, "0")
    await queue.execute("update agent.worker set seen_at = '-infinity' where name = 'touched'")
    async with queue.transaction():
        await queue.execute("select from agent.worker where name = 'touched' for update")
        assert await _announced(engine) is True, "another transaction has its row locked"
    assert await queue.fetchval("select seen_at = '-infinity' from agent.worker where name = 'touched'")
    assert await _announced(engine) is True
    row = await only_row(
        queue,
        "select agent.worker_alive(seen_at) as alive, clock_offset from agent.worker where name = 'touched'",
    )
    assert (row["alive"], row["clock_offset"]) == (True, timedelta(seconds=2))


async def _is_free(engine: Engine, before: int) -> bool:
    peek = await engine.peek_events(KINDS, timedelta(0), positions_before=before)
    return peek.position_free


async def _announced(engine: Engine) -> bool | None:
    peek = await engine.peek_events(KINDS, timedelta(0), worker="touched", clock_offset=timedelta(seconds=2))
    return peek.announced
