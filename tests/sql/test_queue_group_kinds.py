"""A group's events may be of several kinds; one that nobody claims must not hold up the others."""

from datetime import timedelta

import pytest

from surelane.pool import Connection
from tests.sql.queue_steps import (
    advance,
    claim,
    claim_one,
    complete,
    enqueue,
    envelope,
    fail,
    heads,
    insert,
    pair,
    sweep,
)

HANDLED, UNHANDLED = "slack.app_mention", "slack.message.channels"
MINUTE = timedelta(minutes=1)


async def announce(queue: Connection, *kinds: str, name: str = "w1") -> None:
    """A worker says what it handles."""
    await queue.execute("select agent.announce_worker($1, $2, '0.1.0')", name, kinds)


async def handled(queue: Connection) -> list[int]:
    return [row["id"] for row in await claim(queue, HANDLED)]


async def add(queue: Connection, kind: str) -> int:
    return await enqueue(queue, kind, group_key="g")


async def test_a_mention_is_claimed_though_its_channel_message_came_first(queue: Connection) -> None:
    """Slack sends both for one message, and many a bot handles the mention alone."""
    await announce(queue, HANDLED)
    thread = {"channel": "C1", "ts": "1.1"}
    await insert(queue, envelope("Ev1", type="message", channel_type="channel", **thread))
    mention = await insert(queue, envelope("Ev2", **thread))
    assert await handled(queue) == [mention]


async def test_what_nobody_handles_waits_behind_what_somebody_does(queue: Connection) -> None:
    await announce(queue, HANDLED)
    unhandled = await add(queue, UNHANDLED)
    first = await add(queue, HANDLED)
    await add(queue, UNHANDLED)
    second = await add(queue, HANDLED)
    rows = await claim(queue, HANDLED)
    assert [row["id"] for row in rows] == [first, second]
    third = await add(queue, HANDLED)
    assert await handled(queue) == []
    await complete(queue, *map(pair, rows))
    assert await handled(queue) == [third]
    await complete(queue, (third, 1))
    assert await heads(queue, "g") == [unhandled]
    fourth = await add(queue, HANDLED)
    assert await handled(queue) == [fourth]


async def test_a_kind_that_gets_a_worker_is_handed_over_in_order_again(queue: Connection) -> None:
    await announce(queue, HANDLED)
    unhandled = await add(queue, UNHANDLED)
    mention = await add(queue, HANDLED)
    await announce(queue, HANDLED, UNHANDLED, name="w2")
    assert [row["id"] for row in await claim(queue, HANDLED, UNHANDLED)] == [unhandled, mention]


async def test_a_worker_that_announces_itself_frees_what_waited_behind_unhandled_heads(
    queue: Connection,
) -> None:
    await add(queue, UNHANDLED)
    mention = await add(queue, HANDLED)
    assert await handled(queue) == [], "nobody has said yet who handles what"
    await announce(queue, HANDLED)
    assert await handled(queue) == [mention]


async def test_a_kind_whose_workers_are_gone_gives_way_within_a_sweep(queue: Connection) -> None:
    await announce(queue, HANDLED, UNHANDLED)
    await add(queue, UNHANDLED)
    mention = await add(queue, HANDLED)
    await advance(queue, MINUTE * 2)
    await announce(queue, HANDLED, name="w2")
    assert await handled(queue) == [], "its worker was there two minutes ago"
    await advance(queue, MINUTE * 2)
    await announce(queue, HANDLED, name="w2")
    await queue.execute("select agent.sweep_events(_by_age => false)")
    assert await handled(queue) == [mention]


async def test_while_no_worker_runs_those_that_ran_last_are_what_is_known(queue: Connection) -> None:
    await announce(queue, HANDLED)
    await advance(queue, timedelta(hours=20))
    await add(queue, UNHANDLED)
    mention = await add(queue, HANDLED)
    assert await heads(queue, "g") == [mention]


async def test_pausing_a_kind_lets_its_groups_go_on_and_resuming_brings_it_back(queue: Connection) -> None:
    parked = await add(queue, "parked")
    running = await add(queue, HANDLED)
    await queue.execute("select agent.pause_kind('parked')")
    rows = await claim(queue, "parked", HANDLED)
    assert [row["id"] for row in rows] == [running]
    await complete(queue, *map(pair, rows))
    assert await claim(queue, "parked", HANDLED) == []
    await queue.execute("select agent.resume_kind('parked')")
    assert [row["id"] for row in await claim(queue, "parked", HANDLED)] == [parked]


async def test_a_paused_member_is_not_handed_over_with_its_group(queue: Connection) -> None:
    first = await add(queue, HANDLED)
    await add(queue, "parked")
    await queue.execute("select agent.pause_kind('parked')")
    assert [row["id"] for row in await claim(queue, "parked", HANDLED)] == [first]


async def test_a_retry_of_a_paused_kind_does_not_block_its_group(queue: Connection) -> None:
    await add(queue, "parked")
    (row,) = await claim(queue, "parked")
    waiting = await add(queue, HANDLED)
    await fail(queue, pair(row), retry_in=MINUTE)
    assert await handled(queue) == []
    await queue.execute("select agent.pause_kind('parked')")
    assert await handled(queue) == [waiting]


async def test_a_paused_member_does_not_expire_with_its_group(queue: Connection) -> None:
    await add(queue, HANDLED)
    parked = await add(queue, "parked")
    await queue.execute("select agent.pause_kind('parked')")
    await advance(queue, timedelta(hours=2))
    assert await sweep(queue) == 1
    assert await heads(queue, "g") == [parked]


async def test_the_single_claim_passes_a_paused_head_by(queue: Connection) -> None:
    await add(queue, "parked")
    running = await add(queue, HANDLED)
    await queue.execute("select agent.pause_kind('parked')")
    claimed = await claim_one(queue)
    assert claimed is not None
    assert claimed["id"] == running


@pytest.mark.parametrize("unhandled_first", [True, False])
async def test_a_group_of_both_kinds_always_has_one_head_that_somebody_claims(
    queue: Connection, unhandled_first: bool
) -> None:
    await announce(queue, HANDLED)
    for number in range(6):
        await add(queue, UNHANDLED if unhandled_first == (number % 2 == 0) else HANDLED)
        assert len(await heads(queue, "g")) == 1
    assert len(await handled(queue)) == 3
