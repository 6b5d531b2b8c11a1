"""How many events a worker may claim."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import sentinel

import pytest

from surelane.events import Event
from surelane_worker.handling.handler import Handler
from surelane_worker.leasing import Capacity, Leases
from surelane_worker.observing.metrics import Metrics
from surelane_worker.running.runner import Runner
from surelane_worker.running.slots import OVERTAKING, Slots
from surelane_worker.running.work import Work

NOW = datetime(2025, 1, 1, tzinfo=UTC)
CONCURRENCY = 10


class Plain:
    """What slots read of a handler."""

    kinds = ("a",)
    concurrency = None
    interactive = False
    waits = False


class Endless:
    """Runs work that does not end."""

    async def run(self, work: Work) -> bool:
        assert work.claims
        await asyncio.Event().wait()
        return False

    def release(self, work: Work) -> None:
        assert work.claims


@asynccontextmanager
async def busy(seconds: float, waiting: int) -> AsyncIterator[tuple[Slots, Capacity]]:
    """Yield slots that all run, with some work that waits; handlers took that many seconds until now."""
    capacity = Capacity()
    leases = Leases(sentinel.queue, timedelta(minutes=10), Metrics(), capacity)
    settings = cast("Any", SimpleNamespace(concurrency=CONCURRENCY, claim_bytes=1_000_000))
    handler = cast("Handler", Plain())
    slots = Slots(settings, {"a": handler}, cast("Runner", Endless()), leases, capacity, sentinel.answers)
    slots._shares[0].took(seconds)
    events = [Event(n, "a", NOW, 1, 1, NOW, "{}", lane=n % 16) for n in range(CONCURRENCY + waiting)]
    slots.accept(events, asyncio.get_running_loop().time())
    await asyncio.sleep(0)
    yield slots, capacity
    await slots.drain(0)


async def test_a_notification_lets_more_events_be_claimed_one_by_one() -> None:
    """It may be of a priority that comes before those that wait for a slot."""
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


async def test_notifications_double_what_waits_at_most() -> None:
    async with busy(seconds=0.1, waiting=10) as (slots, _):
        slots.let_overtake()
        assert slots.free() == []


@pytest.mark.parametrize(("seconds", "waiting"), [(0.01, 50), (7.0, 0)])
async def test_a_notification_makes_no_claim_where_handlers_are_fast_or_slow(
    seconds: float, waiting: int
) -> None:
    """Fast ones free slots soon, and larger claims are better. Of slow ones, others may have a free slot before."""
    async with busy(seconds, waiting) as (slots, _):
        slots.let_overtake()
        assert slots.free() == []
