"""Slack's limits in the database: leases of calls, at which time they begin, and what may not hold them up."""

import asyncio
from datetime import timedelta

import pytest

from surelane.calls import Connection
from surelane.errors import Conflict, SurelaneError
from surelane_service.engine import Engine
from surelane_worker.slack.limits import Leased, LeaseWanted, SlackLimits
from tests.sql.conftest import Connect
from tests.sql.queue_steps import advance


def wants(wanted: int, calls: int = 3, window: float = 100, spare: int = 0, name: str = "T/x") -> LeaseWanted:
    return LeaseWanted(name, calls, window, wanted, spare, 5.0)


async def lease(queue: Connection, *wanted: LeaseWanted, within: float = 1000.0) -> list[Leased | None]:
    return await SlackLimits(queue).lease_slack_calls(wanted, within)


async def leased(queue: Connection, wanted: LeaseWanted, within: float = 1000.0) -> Leased:
    (answer,) = await lease(queue, wanted, within=within)
    assert answer is not None
    return answer


async def waits(queue: Connection, wanted: LeaseWanted, within: float = 1000.0) -> list[int]:
    """Return the waits in whole seconds."""
    return [round(wait) for wait in (await leased(queue, wanted, within)).waits]


async def test_calls_begin_at_once_until_the_limit_and_then_a_window_later(queue: Connection) -> None:
    assert await waits(queue, wants(5)) == [0, 0, 0, 100, 100]
    await advance(queue, timedelta(seconds=50))
    assert await waits(queue, wants(3)) == [50, 150, 150]
    late = wants(5, name="T/y")
    few = await leased(queue, late, within=99)
    assert (len(few.waits), round(few.later or 0), few.workers) == (3, 100, 0)
    for name in ("one", "two", "gone"):
        await Engine(queue).announce_worker(name, ["job"], "1")
    await Engine(queue).retire_worker("gone")
    await advance(queue, timedelta(seconds=2))
    again = await leased(queue, wants(2, name="T/y"), within=99)
    assert [round(wait) for wait in again.waits] == [98, 98], "what was not leased is there for others"
    assert again.workers == 2


async def test_no_window_has_more_calls_than_the_limit(queue: Connection) -> None:
    made: list[float] = []
    for step in range(40):
        now = step * 7.0
        given = await waits(queue, wants(1 + step % 3, calls=5, window=30), within=25)
        made += [now + wait for wait in given]
        await advance(queue, timedelta(seconds=7))
    for start in made:
        assert sum(start <= each < start + 29 for each in made) <= 5
    assert len(made) >= 5 * (max(made) // 30)


async def test_calls_are_at_hand_while_a_quarter_of_the_limit_is_free(queue: Connection) -> None:
    at_hand = [(await leased(queue, wants(1, calls=8, spare=2))).at_hand for _ in range(3)]
    assert at_hand == [2, 2, 0]
    assert await waits(queue, wants(2, calls=8)) == [0, 100], "a call at hand counts until it is made"
    await advance(queue, timedelta(seconds=103))
    assert await waits(queue, wants(6, calls=8)) == [0, 0, 0, 2, 2, 2], "and a window beyond its last moment"


async def test_workers_lease_limits_at_once_without_any_wait(queue: Connection, connect: Connect) -> None:
    workers = [SlackLimits(await connect("surelane_worker")) for _ in range(4)]
    names = [f"T/{number}" for number in range(6)]
    await lease(queue, *(wants(0, name=name) for name in names))
    made: dict[str, int] = dict.fromkeys(names, 0)

    async def flood(worker: SlackLimits, order: list[str]) -> None:
        wanted = list(order)
        while wanted:
            asked = [wants(5, calls=9, name=name) for name in wanted]
            try:
                answers = await worker.lease_slack_calls(asked, 50)
            except Conflict:  # skip locked waits for a row that is being updated, for 200 ms at most
                continue
            for name, answer in zip(wanted, answers, strict=True):
                made[name] += 0 if answer is None else len(answer.waits)
            wanted = [name for name, answer in zip(wanted, answers, strict=True) if answer is None]

    orders = [names[:: 1 if turn % 2 else -1] for turn in range(len(workers))]
    async with asyncio.timeout(60):
        await asyncio.gather(*map(flood, workers, orders))
    assert set(made.values()) == {9}


async def test_an_open_transaction_holds_up_its_own_limit_alone(queue: Connection, other: Connection) -> None:
    # Each has a call: adding a limit now and then deletes those without a recent one.
    await lease(queue, wants(1), wants(1, name="T/y"))
    async with other.transaction():
        await other.execute("select from agent.slack_limit where name = 'T/x' for update")
        locked, free = await lease(queue, wants(1), wants(1, name="T/y"))
        assert locked is None
        assert free is not None
        assert await SlackLimits(queue).delay_slack_calls("T/x", 3, 100, 5) is False
    async with other.transaction():
        await other.execute("insert into agent.slack_limit (name) values ('T/new')")
        async with asyncio.timeout(60):  # the other transaction ends only after it
            with pytest.raises(SurelaneError):
                await lease(queue, wants(1, name="T/new"))


async def test_a_refused_call_delays_its_limit_and_a_lower_number_holds_at_once(queue: Connection) -> None:
    await lease(queue, wants(1, calls=4))
    assert await SlackLimits(queue).delay_slack_calls("T/x", 4, 100, 30) is True
    assert await waits(queue, wants(4, calls=4)) == [30, 55, 80, 105], "one by one"
    # A limit that was never used can be delayed.
    await SlackLimits(queue).delay_slack_calls("T/y", 1, 60, 30)
    assert await waits(queue, wants(2, calls=1, window=60, name="T/y")) == [30, 90]
    await lease(queue, wants(3, name="T/z"))
    assert await waits(queue, wants(2, calls=1, name="T/z")) == [100, 200]


async def test_limits_that_are_no_longer_used_are_dropped(queue: Connection) -> None:
    await lease(queue, *(wants(1, name=f"T/old-{number}") for number in range(60)))
    await advance(queue, timedelta(seconds=200))
    for number in range(200):
        await lease(queue, wants(1, name=f"T/new-{number}"))
        if not await queue.fetchval("select count(*) from agent.slack_limit where name like 'T/old-%'"):
            return
    raise AssertionError("old limits are still there")
