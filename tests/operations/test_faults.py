"""A slow line that is reset again and again loses nothing."""

from contextlib import AsyncExitStack

import pytest

from tests.operations.load import each_ended_once, load
from tests.system.half_open import half_open
from tests.system.restartable import restartable
from tests.system.worker import worker

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]


async def test_a_line_with_300_ms_and_two_percent_resets_loses_nothing() -> None:
    """Each packet takes 150 ms in either direction."""
    async with (
        restartable() as server,
        half_open(server.uri("surelane_worker")) as line,
        AsyncExitStack() as stack,
    ):
        for _ in range(2):
            await stack.enter_async_context(worker(line.uri))
        line.delay, line.resets = 0.15, 0.02
        stored = await stack.enter_async_context(load(line.uri.replace("surelane_worker@", "surelane@")))
        await stored.reached(30)
        async with server.connected() as connection:
            await each_ended_once(connection, stored.acknowledged[:30], within=120)
        line.delay = line.resets = 0.0
