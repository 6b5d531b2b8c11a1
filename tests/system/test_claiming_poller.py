"""Polls fetch the queue's figures."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest

from surelane_service.engine import Engine
from surelane_service.pool import close_pool, create_pool
from surelane_worker.claiming import poller
from surelane_worker.claiming.claimer import Cursors
from surelane_worker.claiming.poller import Poller
from surelane_worker.claiming.position import Position, Side, Wakeup
from surelane_worker.running.slots import Slots
from surelane_worker.sessions import Announcer, Introduction
from tests.databases import as_role


@pytest.fixture
async def polling(database: str, patience: float, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Poller]:
    monkeypatch.setattr(poller, "PATIENCE", patience)
    pool = await create_pool(as_role(database, "surelane_worker"), service="test", max_size=2)
    sides = [Side(Wakeup(), cast("Slots", SimpleNamespace(kinds=["echo"])))]
    yield Poller(
        Engine(pool),
        ["echo"],
        Cursors(),
        sides,
        Position(sides, 600, True, Mock(), ["echo"]),
        Announcer(cast("Introduction", SimpleNamespace(name="polling")), Mock(), Mock()),
        interval=timedelta(seconds=0.1),
        max_attempts=3,
        on_cron=lambda _: None,
        on_drained=lambda _: None,
        on_slow=partial(asyncio.sleep, 0),
    )
    await close_pool(pool)


@pytest.mark.parametrize("patience", [600])
async def test_figures_come_with_the_next_poll(polling: Poller) -> None:
    running = asyncio.create_task(polling.run())
    try:
        async with asyncio.timeout(60):
            first, again = await polling.figures(), await polling.figures()
    finally:
        running.cancel()
    assert (first.kinds, again.fresh) == ([], False)


@pytest.mark.parametrize("patience", [0.1])
async def test_figures_that_no_poll_brings_are_asked_for(polling: Poller) -> None:
    assert (await polling.figures()).kinds == []
