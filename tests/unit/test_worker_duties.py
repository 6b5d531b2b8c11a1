"""Duties that run beside the worker's loop."""

import asyncio

import pytest

from surelane_worker import wiring
from surelane_worker.wiring import beside


async def test_a_duty_that_crashes_begins_again_and_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "RESTART", 0.0)
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

    async with beside(crashes, other):
        async with asyncio.timeout(30):
            await again.wait()
        assert not other_ended
    assert begun == 3
    assert other_ended
