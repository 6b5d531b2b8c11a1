"""What people think of turns is stored once a person, and goes with its turn, with retention and with erasing."""

import json
from datetime import timedelta

import pytest

from surelane.calls import Connection
from surelane.queue import Queue
from tests.sql.queue_steps import advance
from tests.sql.test_erase import erase, traces
from tests.sql.test_model_usage import retain

RATE = "select agent.rate_turn($1, $2, $3, $4, $5, $6, 'm', $7)"
REMIND = "select agent.remind_feedback($1, $2, 1)"


async def turn(queue: Connection, user: str = "U1", channel: str = "C1", *, done: bool = True) -> int:
    identity = await Queue(queue).enqueue("turn", {"team": "T1", "user": user, "channel": channel})
    if done:
        await queue.execute("select agent.claim_events('{turn}')")
        await queue.execute("select agent.complete_events(array[$1::int8], array[1])", identity)
    return identity


async def rows(queue: Connection) -> list[tuple[str, int, str | None]]:
    found = await queue.fetch("select * from agent.feedback where event_id > 0 order by user_id")
    return [(row["user_id"], row["rating"], row["reason"]) for row in found]


@pytest.mark.parametrize("done", [True, False])
async def test_later_click_counts_in_the_turns_channel(queue: Connection, done: bool) -> None:
    identity = await turn(queue, done=done)
    assert not await queue.fetchval(RATE, identity, "T1", "U1", "C2", 1, None, 1)
    assert not await queue.fetchval(RATE, identity + 1, "T1", "U1", "C1", 1, None, 1)
    assert await rows(queue) == []
    assert await queue.fetchval(RATE, identity, "T1", "U1", "C1", -1, None, 2)
    assert await queue.fetchval(RATE, identity, "T1", "U1", "C1", -1, '"rude"', 4)
    # An earlier click, the same one, and the same rating again.
    for click, rating in ((3, 1), (4, 1), (5, -1)):
        assert await queue.fetchval(RATE, identity, "T1", "U1", "C1", rating, None, click)
        assert await rows(queue) == [("U1", -1, '"rude"')]
    assert await queue.fetchval(RATE, identity, "T1", "U2", "C1", 1, None, 6)
    assert await queue.fetchval(RATE, identity, "T1", "U1", "C1", 1, None, 7)
    assert await rows(queue) == [("U1", 1, None), ("U2", 1, None)]


async def test_person_is_told_three_times_unless_they_rate_also_after_retention(queue: Connection) -> None:
    assert [await queue.fetchval(REMIND, "T1", "U1") for _ in range(5)] == [True, True, True, False, False]
    assert await queue.fetchval(REMIND, "T2", "U1")
    identity = await turn(queue)
    assert await queue.fetchval(RATE, identity, "T2", "U1", "C1", 1, None, 1)
    assert not await queue.fetchval(REMIND, "T2", "U1")
    await retain(queue)
    assert len(await rows(queue)) == 1
    await advance(queue, timedelta(days=60))
    await retain(queue)
    assert await rows(queue) == []
    assert not await queue.fetchval(REMIND, "T2", "U1")


async def test_erasing_takes_what_a_person_said_and_others_of_the_persons_turns(queue: Connection) -> None:
    mine, other = await turn(queue, "U1"), await turn(queue, "U2", "C2")
    for person, identity, channel in (("U2", mine, "C1"), ("U1", other, "C2"), ("U3", other, "C2")):
        await queue.execute(RATE, identity, "T1", person, channel, -1, '"rude"', 1)
    counts = await erase(queue, user="U1")
    assert counts["feedback"] == 2, json.dumps(counts)  # the rating, and that U1 knows the thumbs
    assert [row[0] for row in await rows(queue)] == ["U3"]
    assert await traces(queue, "U1") == []
    assert not await queue.fetchval(RATE, mine, "T1", "U2", "C1", 1, None, 9)
    await erase(queue, channel="C2")
    assert await rows(queue) == []
    await erase(queue, team="T1")
    assert await queue.fetchval("select count(*) from agent.feedback") == 0
    # What was stored while its turn was erased is found by the next one.
    await queue.execute(RATE, await turn(queue), "T1", "U1", "C1", 1, None, 1)
    await queue.execute("update agent.feedback set event_id = 999999 where event_id > 0")
    await erase(queue, user="U9")
    assert await rows(queue) == []
