"""A claim brings a bounded amount of text."""

import random

import pytest

from surelane.calls import Connection
from surelane.queue import Queue
from surelane_service.engine import Engine

LARGE = 300_000
NOISE = random.Random(1).randbytes(LARGE // 2).hex()


@pytest.mark.parametrize("text", [NOISE, "a" * LARGE], ids=["noise", "compressed"])
@pytest.mark.parametrize("group", [None, "T:C:1"], ids=["alone", "group"])
async def test_a_claim_stops_before_its_most_bytes(queue: Connection, text: str, group: str | None) -> None:
    engine = Engine(queue)

    async def claimed(most_bytes: int | None, limit: int = 20) -> int:
        """Claim once; return how many events came, and release them."""
        events = await engine.claim_events(["echo"], limit, worker="w", most_bytes=most_bytes)
        await engine.settle([(event.id, event.claim, "release", None) for event in events])
        return len(events)

    for _ in range(4):
        await Queue(queue).enqueue("echo", {"text": text}, group_key=group)
    assert await claimed(None) == 4
    assert await claimed(3 * LARGE) == 2
    assert await claimed(1) == 1, "the first one always"
    assert await claimed(10 * LARGE) == 4
    await queue.execute("delete from agent.event")
    for _ in range(50):
        await Queue(queue).enqueue("echo", {"text": "short"})
    assert await claimed(10**6, 100) == 50
