"""The worker's duties run beside the claimer."""

import asyncio

from surelane_worker.duties import beside


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
