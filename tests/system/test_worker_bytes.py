"""A worker keeps a bounded amount of text."""

import json
import random
from itertools import accumulate

from surelane.calls import Connection
from surelane_service.engine import Engine
from tests.system.worker import ended, enqueue, worker

LARGE = 300_000
NOISE = random.Random(1).randbytes(LARGE // 2).hex()


async def claimed(connection: Connection, most_bytes: int | None, limit: int = 20) -> list[int]:
    """Claim once; return the sizes of the events and release them."""
    events = await Engine(connection).claim_events(["echo"], limit, worker="w", most_bytes=most_bytes)
    await Engine(connection).settle([(event.id, event.claim, "release", None) for event in events])
    return [len(event.body) for event in events]


async def test_a_claim_stops_before_the_event_that_exceeds_its_bytes(connection: Connection) -> None:
    """This holds for compressed events and for the events of a group too."""
    for text, group in [(NOISE, None), ("a" * LARGE, None), (NOISE, "T:C:1"), ("a" * LARGE, "T:C:2")]:
        async with connection.transaction():
            for _ in range(4):
                await enqueue(connection, "echo", {"text": text}, group_key=group)
        assert len(await claimed(connection, None)) == 4
        assert len(await claimed(connection, 3 * LARGE)) == 2
        assert len(await claimed(connection, 1)) == 1, "the first one always"
        assert len(await claimed(connection, 10 * LARGE)) == 4
        await connection.execute("delete from agent.event")
    for _ in range(50):
        await enqueue(connection, "echo", {"text": "short"})
    assert len(await claimed(connection, 10**6, 100)) == 50


async def test_a_worker_holds_no_more_than_its_bytes(database: str, connection: Connection) -> None:
    async with connection.transaction():
        identities = [await enqueue(connection, "step", {"text": NOISE}) for _ in range(12)]
    async with worker(database, SURELANE_CONCURRENCY="20", SURELANE_CLAIM_BYTES=str(3 * LARGE)):
        rows = [await ended(connection, identity, within=60) for identity in identities]
    results = [json.loads(row["result"]) for row in rows]
    moments = sorted(
        [(result["began"], 1) for result in results] + [(result["ended"], -1) for result in results]
    )
    assert max(accumulate(change for _, change in moments)) <= 3
