"""When settles are sent."""

import asyncio
import gc
import weakref
from datetime import timedelta

import pytest

from surelane.events import Completion
from surelane.pool import Connection, close_pool, create_pool
from surelane.queue import Queue
from surelane_worker import settle
from surelane_worker.claims import MOST_MEMBERS, Work
from surelane_worker.handler import Handler
from surelane_worker.lease import Leases
from surelane_worker.metrics import Metrics
from surelane_worker.settle import MANY, Settler


async def nothing(event: object, ctx: object) -> None:
    """Is not called here."""


async def test_what_somebody_waits_for_is_not_held_back_to_gather_more(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "GATHERING", 600)
    await connection.execute("select agent.enqueue('echo') from generate_series(1, $1)", MANY + 1)
    pool = await create_pool(database, service="test", max_size=1)
    queue, metrics = Queue(pool), Metrics()
    settled = asyncio.Event()
    leases = Leases(queue, timedelta(minutes=10), metrics)
    settler = Settler(queue, leases, metrics, None, max_attempts=3, on_settled=settled.set)
    sending = asyncio.create_task(settler.run())
    try:
        events = await queue.claim_events(["echo"], MANY + 1, worker="w")
        claims = [
            Work(Handler("echo", ("echo",), nothing), [event], 600.0, 0.0).claims[0] for event in events
        ]
        for claim in claims[:MANY]:
            settler.put(claim, Completion(*claim.fence))
        async with asyncio.timeout(60):
            await settled.wait()
            settler.put(claims[MANY], Completion(*claims[MANY].fence))
            settler.hurry()
            await settler.flushed()
    finally:
        sending.cancel()
        await close_pool(pool)
    assert await connection.fetchval("select count(*) from agent.event_hist") == MANY + 1


async def test_what_is_settled_is_freed_without_the_garbage_collector(connection: Connection) -> None:
    await connection.execute("select agent.enqueue('echo')")
    leases = Leases(Queue(connection), timedelta(minutes=10), Metrics())
    (event,) = await Queue(connection).claim_events(["echo"], 1, worker="w")
    work = Work(Handler("echo", ("echo",), nothing), [event], 600.0, 0.0)
    leases.add(work)
    freed = weakref.ref(event)
    gc.disable()
    try:
        leases.drop(work.claims)
        del event, work
        assert freed() is None
    finally:
        gc.enable()


async def test_a_full_batch_of_an_entity_says_that_there_may_be_more(connection: Connection) -> None:
    await connection.execute("select agent.enqueue('echo', _group_key => 'g') from generate_series(1, 250)")
    sizes = []
    while events := await Queue(connection).claim_events(["echo"], 10, worker="w"):
        sizes.append((len(events), Work(Handler("echo", ("echo",), nothing), events, 600.0, 0.0).brings_more))
        await Queue(connection).complete_events([Completion(event.id, event.claim) for event in events])
    assert sizes == [(MOST_MEMBERS + 1, True), (MOST_MEMBERS + 1, True), (48, False)]
