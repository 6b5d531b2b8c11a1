"""Events end, are tried again or expire as documented, after failures and crashes too."""

import json
from datetime import timedelta

from surelane.calls import Connection
from tests.sql.queue_steps import (
    advance,
    claim,
    claim_one,
    ended_row,
    ending,
    enqueue,
    expire,
    fail,
    live,
    pair,
    sweep,
)

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


async def test_at_the_maximum_an_event_ends_as_failed_with_every_error(queue: Connection) -> None:
    identity = await enqueue(queue)
    for _ in range(3):
        (row,) = await claim(queue)
        assert await fail(queue, pair(row)) == ["done"]
    assert await claim(queue) == []
    assert await ending(queue, identity) == ("failed", "attempts_exhausted")
    row_ended = await ended_row(queue, identity)
    assert [error["message"] for error in json.loads(row_ended["errors"])] == [
        f"attempt with claim {number}" for number in (1, 2, 3)
    ]
    assert (row_ended["attempts"], len(row_ended["claimed"]), row_ended["finished_by"]) == (3, 3, "w1")


async def test_a_negative_pause_is_none(queue: Connection) -> None:
    await enqueue(queue)
    (row,) = await claim(queue)
    before = await queue.fetchval("select agent.clock()")
    await fail(queue, pair(row), retry_in=timedelta(days=-1))
    assert await queue.fetchval("select vt >= $1 from agent.event", before)


async def test_a_live_lease_never_expires(queue: Connection) -> None:
    """It does not at the last attempt, past the deadline or at any age of the event."""
    deadline = await queue.fetchval("select agent.clock() + interval '1 minute'")
    identity = await enqueue(queue, max_attempts=1, deadline=deadline)
    await claim(queue, lease=HOUR * 9)
    await advance(queue, HOUR * 8)
    assert await sweep(queue) == 0
    assert await live(queue, identity) is not None


async def test_a_paused_kind_never_expires(queue: Connection) -> None:
    deadline = await queue.fetchval("select agent.clock() + interval '1 minute'")
    await enqueue(queue, "parked", deadline=deadline)
    await enqueue(queue, "parked", max_attempts=1)
    await claim_one(queue, 1, timedelta(minutes=1))
    await queue.execute("select agent.pause_kind('parked')")
    await advance(queue, timedelta(days=30))
    assert await sweep(queue) == 0
    await queue.execute("select agent.resume_kind('parked')")
    assert await sweep(queue) == 2


async def test_a_workers_sweep_expires_by_age_only_its_kinds_and_only_if_it_may(queue: Connection) -> None:
    mine, others = await enqueue(queue, "slack.mine"), await enqueue(queue, "slack.others")
    await advance(queue, HOUR * 2)
    by_age = "select agent.sweep_events(_kinds => array['slack.mine'], _by_age => $1)"
    assert await queue.fetchval(by_age, False) == 0
    assert await queue.fetchval(by_age, True) == 1
    assert await ending(queue, mine) == ("expired", "too_old")
    assert await live(queue, others) is not None


async def test_a_passed_deadline_expires_what_does_not_run(queue: Connection) -> None:
    deadline = await queue.fetchval("select agent.clock() + interval '20 minutes'")
    waiting = await enqueue(queue, "waiting", deadline=deadline)
    lapsed = await enqueue(queue, deadline=deadline)
    assert len(await claim(queue)) == 1
    await advance(queue, timedelta(minutes=19))
    assert await sweep(queue) == 0
    await advance(queue, timedelta(minutes=1, seconds=1))
    assert await sweep(queue) == 2
    for identity in (waiting, lapsed):
        assert await ending(queue, identity) == ("expired", "deadline_passed")


async def test_a_sweep_is_bounded_and_repeats_until_nothing_is_left(queue: Connection) -> None:
    await queue.execute("select agent.enqueue('job') from generate_series(1, 25)")
    await advance(queue, HOUR * 2)
    assert [await queue.fetchval("select agent.sweep_events(_limit => 10)") for _ in range(4)] == [
        10,
        10,
        5,
        0,
    ]
    await queue.execute("select agent.enqueue('job') from generate_series(1, 2500)")
    await advance(queue, HOUR * 2)
    assert await expire(queue) == 2500


async def test_sweeps_step_over_each_others_events(queue: Connection, other: Connection) -> None:
    first = await enqueue(queue)
    await enqueue(queue)
    await advance(queue, HOUR * 2)
    async with other.transaction():
        await other.execute("select from agent.event where id = $1 for update", first)
        assert await sweep(queue) == 1
    assert await sweep(queue) == 1
