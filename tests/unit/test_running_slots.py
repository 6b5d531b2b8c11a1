"""How many events a worker may claim, and in which order they get its slots."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch, sentinel

import pytest

from surelane.events import Event
from surelane_worker.handling.handler import Handler
from surelane_worker.leasing import Capacity, Leases, Work
from surelane_worker.observing.metrics import Metrics
from surelane_worker.running.runner import Runner
from surelane_worker.running.slots import AGED, OVERTAKING, TURN, Slots, Waiting

NOW = datetime(2025, 1, 1, tzinfo=UTC)
CONCURRENCY = 10
EVENTS = 5


class Plain:
    """What slots read of a handler."""

    kinds = claims = ("a",)
    concurrency = None
    interactive = False
    waits = False


class Endless:
    """Runs work that does not end, except for the first."""

    def __init__(self, leases: Leases) -> None:
        self.leases = leases
        self.begun = False

    async def run(self, work: Work) -> bool:
        assert work.claims
        if self.begun:
            await asyncio.Event().wait()
        self.begun = True
        self.leases.drop(work.claims)
        return False

    def release(self, work: Work) -> None:
        assert work.claims


class Noting:
    """Runs work at once, and notes the task of each."""

    def __init__(self, takes: float = 0.0, *, cancels: bool = False) -> None:
        self.tasks: list[asyncio.Task[Any] | None] = []
        self.takes = takes
        self.cancels = cancels
        self.all = asyncio.Event()

    async def run(self, work: Work) -> bool:
        assert work.task is asyncio.current_task()
        self.tasks.append(work.task)
        until = time.perf_counter() + self.takes
        while time.perf_counter() < until:
            pass
        if self.cancels and work.task is not None:
            work.task.cancel()
        if len(self.tasks) == EVENTS:
            self.all.set()
        return False


def slots_of(runner: object, leases: Leases, capacity: Capacity, concurrency: int) -> Slots:
    settings = cast("Any", SimpleNamespace(concurrency=concurrency, claim_bytes=1_000_000))
    handlers = {"a": cast("Handler", Plain())}
    return Slots(settings, handlers, cast("Runner", runner), leases, capacity, sentinel.answers)


async def tasks_of(runner: Noting) -> list[asyncio.Task[Any] | None]:
    capacity = Capacity()
    leases = Leases(sentinel.queue, timedelta(minutes=10), Metrics(), capacity)
    slots = slots_of(runner, leases, capacity, 1)
    events = [Event(n, "a", NOW, 1, 1, NOW, "{}", lane=0) for n in range(EVENTS)]
    slots.accept(events, asyncio.get_running_loop().time())
    await runner.all.wait()
    return runner.tasks


@asynccontextmanager
async def busy(
    seconds: float, waiting: int, wake: Callable[[], object] = lambda: None
) -> AsyncIterator[tuple[Slots, Capacity]]:
    """Yield slots that all run, with some work that waits; handlers took that many seconds until now."""
    capacity = Capacity(cast("Any", wake))
    leases = Leases(sentinel.queue, timedelta(minutes=10), Metrics(), capacity)
    slots = slots_of(Endless(leases), leases, capacity, CONCURRENCY)
    count = 1 + CONCURRENCY + waiting
    first, *events = [Event(n, "a", NOW, 1, 1, NOW, "{}", lane=n % 16) for n in range(count)]
    with patch("surelane_worker.running.slots.time.perf_counter", side_effect=chain([0.0], repeat(seconds))):
        slots.accept([first], asyncio.get_running_loop().time())
        assert await capacity.freed(within=30)
    slots.accept(events, asyncio.get_running_loop().time())
    await asyncio.sleep(0)
    yield slots, capacity
    await slots.drain(0)


async def test_a_notification_lets_more_events_be_claimed_one_by_one() -> None:
    """Its priority may come before the events that wait for a slot."""
    async with busy(seconds=0.1, waiting=5) as (slots, capacity):
        assert slots.free() == []
        freed = asyncio.create_task(capacity.freed(within=30))
        await asyncio.sleep(0)
        slots.let_overtake()
        assert await freed
        assert slots.full(), "another worker with a free slot is the better one"
        for _ in range(OVERTAKING):
            assert slots.free() == [(["a"], 1)]
            slots.left_out(slots.free())
        assert slots.free() == [], "the claims have begun"


@pytest.mark.parametrize(("seconds", "waiting"), [(0.1, 10), (0.01, 50), (7.0, 0)])
async def test_a_notification_claims_nothing_of_fast_or_slow_handlers(seconds: float, waiting: int) -> None:
    """They double what waits at most. Fast handlers free slots soon. Of slow ones, other workers may have one."""
    async with busy(seconds, waiting) as (slots, _):
        slots.let_overtake()
        assert slots.free() == []


async def test_a_task_runs_several_short_events_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(set(await tasks_of(Noting(takes=2 * TURN)))) == EVENTS
    monkeypatch.setattr("surelane_worker.running.slots.TURN", 600.0)
    for cancels, tasks in ((False, 1), (True, EVENTS)):
        assert len(set(await tasks_of(Noting(cancels=cancels)))) == tasks


class Stepwise:
    """Runs the first step of a group, which then waits for a slot again, and work of others until it is let go."""

    def __init__(self) -> None:
        self.stepped: Work | None = None
        self.began = asyncio.Event()
        self.let_go = asyncio.Event()
        self.ended = asyncio.get_running_loop().create_future()

    async def run(self, work: Work) -> bool:
        if work.claims[0].event.group_key is not None:
            if self.stepped is None:
                self.stepped = work
                return True
            return False
        self.began.set()
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.ended.set_result("cancelled")
            raise
        self.ended.set_result("ran")
        return False


async def test_a_stop_of_a_group_that_waits_for_a_slot_does_not_cancel_the_work_that_took_its_task() -> None:
    runner = Stepwise()
    capacity = Capacity()
    leases = Leases(sentinel.queue, timedelta(minutes=10), Metrics(), capacity)
    slots = slots_of(runner, leases, capacity, 1)
    now = asyncio.get_running_loop().time()
    # The other event is of priority 0, so it comes before the group's next step.
    slots.accept([Event(n, "a", NOW, 1, 1, NOW, "{}", lane=0, group_key="g") for n in (1, 2)], now)
    slots.accept([Event(3, "a", NOW, 1, 1, NOW, "{}", lane=16)], now)
    await asyncio.wait_for(runner.began.wait(), 30)
    assert runner.stepped is not None
    runner.stepped.stop("cancelled")
    await asyncio.sleep(0)
    runner.let_go.set()
    assert await asyncio.wait_for(runner.ended, 30) == "ran"
    await slots.drain(0)


FIRST, USUAL, SECOND, LAST, CROWD = 16, 3, 20, 24, 28
"""Lanes of priorities 0, 1, 2 and 3, and of a crowd at priority 1."""


def work(identity: int, lane: int | None, since: float = 0.0) -> Work:
    return Work(sentinel.handler, [Event(identity, "a", NOW, 1, 1, NOW, "{}", lane=lane)], 600.0, since)


def taken(waiting: Waiting, now: float = 0.0) -> list[int]:
    return [waiting.take(now).claims[0].event.id for _ in range(len(waiting))]


def filled(*works: Work) -> Waiting:
    waiting = Waiting()
    for each in works:
        waiting.add(each)
    return waiting


def test_work_runs_by_priority_and_within_a_band_in_the_order_of_its_claims() -> None:
    assert taken(filled(*(work(n, n % 16) for n in range(5)))) == [0, 1, 2, 3, 4]
    lanes = (LAST, SECOND, USUAL, FIRST)
    assert taken(filled(*(work(n, lane) for n, lane in enumerate(lanes)))) == [3, 2, 1, 0]
    assert taken(filled(work(0, LAST), work(1, None), work(2, FIRST))) == [2, 1, 0], "None has priority 1"
    crowd = [work(n, CROWD) for n in range(3)]
    found = taken(filled(*crowd, work(3, USUAL), work(4, FIRST), work(5, SECOND)))
    assert found[:2] == [4, 3], "of priority 1, the band with least work comes first"
    waiting = filled(work(0, USUAL), work(1, FIRST))
    waiting.add(work(2, USUAL), first=True)
    assert taken(waiting) == [1, 2, 0], "a group that goes on is ahead of its band"


def test_work_that_waited_long_comes_before_all_other_and_too_long_is_taken_from_every_band() -> None:
    waiting = filled(work(0, LAST, since=0.0), work(1, FIRST, since=AGED / 2), work(2, USUAL, since=AGED / 2))
    assert taken(waiting, now=AGED) == [0, 1, 2]
    lanes = (USUAL, FIRST, LAST, USUAL)
    waiting = filled(*(work(n, lane, since=n) for n, lane in enumerate(lanes)))
    assert sorted(each.claims[0].event.id for each in waiting.take_since(2)) == [0, 1]
    assert len(waiting) == 2
    assert taken(waiting) == [3, 2]
    assert not waiting
