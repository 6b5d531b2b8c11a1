"""The worker's duties run beside the claimer."""

import asyncio
from typing import Any, cast
from unittest.mock import Mock, sentinel

import asyncpg
import pytest

from surelane_worker import Handlers
from surelane_worker.assembly import Pools, Worker
from surelane_worker.duties import Retention, Uninstalls, beside
from surelane_worker.observing.metrics import Metrics
from surelane_worker.observing.tracing import Observer
from surelane_worker.worker_settings import WorkerSettings


async def test_a_duty_that_crashes_begins_again_and_ends_no_other() -> None:
    begun, again = 0, asyncio.Event()
    other_ended = False

    async def crashes() -> None:
        nonlocal begun
        begun += 1
        if begun == 3:
            again.set()
            await asyncio.Event().wait()
        raise RuntimeError("a fault of ours")

    async def other() -> None:
        nonlocal other_ended
        try:
            await asyncio.Event().wait()
        finally:
            other_ended = True

    async with beside(crashes, other, restart=0.0):
        async with asyncio.timeout(30):
            await again.wait()
        assert not other_ended
    assert begun == 3
    assert other_ended


@pytest.mark.parametrize(("retention", "erasing"), [("off", "30d"), ("30d", "off")])
async def test_what_is_off_drops_none(retention: str, erasing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://nowhere/")
    monkeypatch.setenv("SURELANE_HISTORY_RETENTION", retention)
    monkeypatch.setenv("SURELANE_ERASE_UNINSTALLED_AFTER", erasing)
    pools = Pools(*[Mock(spec=asyncpg.Pool)] * 5)
    worker = Worker(cast("Any", WorkerSettings)(), Handlers(), pools, sentinel.slack, Observer(Metrics()))
    owners = [getattr(duty, "__self__", None) for duty in worker.duties()]
    assert any(isinstance(owner, Retention) for owner in owners) == (retention != "off")
    assert any(isinstance(owner, Uninstalls) for owner in owners) == (erasing != "off")
