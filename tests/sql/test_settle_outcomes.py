"""Events end, are tried again or expire as documented, after failures and crashes too."""

import json
from datetime import timedelta

import pytest

from surelane.calls import Connection
from tests.sql.conftest import Connect
from tests.sql.queue_steps import (
    TEN_MINUTES,
    advance,
    claim,
    claim_one,
    complete,
    ended,
    ending,
    enqueue,
    envelope,
    expire,
    fail,
    insert,
    live,
    pair,
    release,
    snooze,
    sweep,
)

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


async def cancel(queue: Connection, key: str) -> str | None:
    answer: str | None = await queue.fetchval("select agent.cancel_event($1)", key)
    return answer


async def test_a_failed_event_is_tried_again_after_its_pause(queue: Connection) -> None:
    identity = await enqueue(queue)
    (row,) = await claim(queue)
    assert await fail(queue, pair(row), retry_in=timedelta(minutes=4)) == ["done"]
    stored = await live(queue, identity)
    assert stored is not None
    assert (stored["claimed_by"], stored["heartbeat_at"], stored["attempts"]) == (None, None, 1)
    await advance(queue, timedelta(minutes=2))
    assert await claim(queue) == []
    await advance(queue, timedelta(minutes=2))
    (again,) = await claim(queue)
    assert (again["attempts"], json.loads(again["errors"])) == (2, [{"message": "attempt with claim 1"}])


async def test_at_the_maximum_an_event_ends_as_failed_with_every_error(queue: Connection) -> None:
    identity = await enqueue(queue)
    for _ in range(3):
        (row,) = await claim(queue)
        assert await fail(queue, pair(row)) == ["done"]
    assert await claim(queue) == []
    assert await ending(queue, identity) == ("failed", "attempts_exhausted")
    row_ended = await ended(queue, identity)
    assert row_ended is not None
    assert [error["message"] for error in json.loads(row_ended["errors"])] == [
        f"attempt with claim {number}" for number in (1, 2, 3)
    ]
    assert (row_ended["attempts"], len(row_ended["claimed"]), row_ended["finished_by"]) == (3, 3, "w1")


async def test_a_final_failure_ends_an_event_with_its_reason(queue: Connection) -> None:
    identity = await enqueue(queue)
    (row,) = await claim(queue)
    await fail(queue, pair(row), final=True, reason="channel_not_found")
    assert await ending(queue, identity) == ("failed", "channel_not_found")


async def test_an_events_own_maximum_decides_when_it_has_failed(queue: Connection) -> None:
    once, more = await enqueue(queue, max_attempts=1), await enqueue(queue, max_attempts=9)
    rows = await claim(queue)
    await fail(queue, *map(pair, rows), max_attempts=1)
    assert await ending(queue, once) == ("failed", "attempts_exhausted")
    assert await live(queue, more) is not None


async def test_released_and_snoozed_attempts_do_not_count(queue: Connection) -> None:
    identity = await enqueue(queue, max_attempts=1)
    for number in range(1, 4):
        (row,) = await claim(queue)
        assert (row["attempts"], row["claim"]) == (1, number)
        await release(queue, pair(row))
    (row,) = await claim(queue)
    await snooze(queue, pair(row), timedelta(minutes=1))
    stored = await live(queue, identity)
    assert stored is not None
    assert (stored["attempts"], stored["retrying"]) == (0, False)
    assert await claim(queue) == []
    await advance(queue, timedelta(minutes=1))
    assert len(await claim(queue)) == 1


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


async def test_what_is_scheduled_or_awaits_its_retry_never_expires(queue: Connection) -> None:
    await enqueue(queue, run_at=await queue.fetchval("select agent.clock() + interval '1 day'"))
    retrying = await enqueue(queue, "retrying")
    (row,) = await claim(queue, "retrying")
    await fail(queue, pair(row), retry_in=timedelta(days=1))
    await advance(queue, HOUR * 23)
    assert await sweep(queue) == 0
    await advance(queue, HOUR * 2 + SECOND)
    assert await sweep(queue) == 2
    assert await ending(queue, retrying) == ("expired", "too_old")


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


async def test_what_waited_longer_than_the_age_expires_as_too_old(queue: Connection) -> None:
    identity = await insert(queue, envelope("Ev1"))
    await advance(queue, HOUR / 2)
    assert await sweep(queue) == 0
    await advance(queue, HOUR / 2 + SECOND)
    assert await sweep(queue) == 1
    assert await ending(queue, identity) == ("expired", "too_old")


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


async def test_sweeps_step_over_each_others_events(queue: Connection, connect: Connect) -> None:
    first = await enqueue(queue)
    await enqueue(queue)
    await advance(queue, HOUR * 2)
    other = await connect()
    async with other.transaction():
        await other.execute("select from agent.event where id = $1 for update", first)
        assert await sweep(queue) == 1
    assert await sweep(queue) == 1


async def test_a_lease_that_is_renewed_while_a_sweep_waits_is_left_alone(queue: Connection) -> None:
    await enqueue(queue, max_attempts=1)
    (row,) = await claim(queue)
    await advance(queue, TEN_MINUTES + SECOND)
    await queue.fetch("select agent.extend_leases($1, $2)", [row["id"]], [row["claim"]])
    assert await sweep(queue) == 0
    assert await complete(queue, pair(row)) == ["done"]


async def test_a_crashed_workers_events_return_without_waiting_for_their_lease(queue: Connection) -> None:
    await enqueue(queue)
    await enqueue(queue, "by hand")
    (crashed,) = await claim(queue)
    silent = await claim_one(queue)
    assert silent is not None
    await advance(queue, timedelta(minutes=4))
    assert await queue.fetchval("select agent.rescue_events()") == 0
    await advance(queue, timedelta(minutes=2))
    assert await queue.fetchval("select agent.rescue_events()") == 1
    (again,) = await claim(queue, "job", "by hand")
    assert (again["id"], again["attempts"], again["claim"]) == (crashed["id"], 2, 2)
    assert await complete(queue, pair(crashed)) == ["stale"]
    assert await complete(queue, (silent["id"], 1)) == ["done"]


async def test_a_rescued_last_attempt_expires(queue: Connection) -> None:
    identity = await enqueue(queue, max_attempts=1)
    await claim(queue)
    await advance(queue, timedelta(minutes=6))
    assert await queue.fetchval("select agent.rescue_events('5 minutes')") == 1
    assert await claim(queue) == []
    assert await ending(queue, identity) == ("expired", "attempts_exhausted")


async def test_cancelling_what_waits_ends_it(queue: Connection) -> None:
    identity = await enqueue(queue, item_key="welcome:1")
    assert await cancel(queue, "welcome:1") == "cancelled"
    assert await ending(queue, identity) == ("cancelled", "cancelled by surelane")
    assert await cancel(queue, "welcome:1") is None


@pytest.mark.parametrize("how", ["fail", "release", "snooze", "lapse"])
async def test_cancelling_what_runs_ends_it_with_its_attempt(queue: Connection, how: str) -> None:
    identity = await enqueue(queue, item_key="welcome:1")
    (row,) = await claim(queue)
    assert await cancel(queue, "welcome:1") == "running"
    match how:
        case "fail":
            await fail(queue, pair(row))
        case "release":
            await release(queue, pair(row))
        case "snooze":
            await snooze(queue, pair(row), SECOND)
        case _:
            await advance(queue, TEN_MINUTES)
            assert await claim(queue) == [], "it gets no further attempt"
            assert await claim_one(queue) is None
            assert await sweep(queue) == 1
    assert await ending(queue, identity) == ("cancelled", "cancelled while running")


async def test_what_completes_though_it_was_cancelled_is_completed(queue: Connection) -> None:
    identity = await enqueue(queue, item_key="welcome:1")
    (row,) = await claim(queue)
    await cancel(queue, "welcome:1")
    assert await complete(queue, pair(row)) == ["done"]
    assert await ending(queue, identity) == ("completed", None)


async def test_cancelling_what_lapsed_ends_it_at_once(queue: Connection) -> None:
    identity = await enqueue(queue, item_key="welcome:1")
    (row,) = await claim(queue)
    await advance(queue, TEN_MINUTES)
    assert await cancel(queue, "welcome:1") == "cancelled"
    assert await complete(queue, pair(row)) == ["stale"]
    assert (await ending(queue, identity))[0] == "cancelled"
