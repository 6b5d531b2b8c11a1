"""Peeks find the events that a worker waits for, and claim nothing."""

from datetime import datetime, timedelta

from surelane.calls import Connection
from surelane_service.engine import Engine, Peek
from tests.sql.queue_steps import claim, enqueue, pair, release
from tests.sql.test_claim import LANES

KINDS = ["job", "other"]
HOUR = timedelta(hours=1)


async def enqueue_in(queue: Connection, lane: int, kind: str = "job", at: datetime | None = None) -> datetime:
    """Enqueue a job in a lane; return the time when it becomes visible."""
    identity = await enqueue(queue, kind, run_at=at)
    vt: datetime = await queue.fetchval(
        "update agent.event set lane = $2 where id = $1 returning vt", identity, lane
    )
    return vt


async def peek(queue: Connection, cursors: list[datetime | None] | None = None) -> Peek:
    return await Engine(queue).peek_events(KINDS, HOUR, cursors=cursors)


def found(peeked: Peek) -> dict[tuple[int, str], datetime]:
    places = [(lane, kind) for lane in range(LANES) for kind in KINDS]
    return {place: vt for place, vt in zip(places, peeked.vts, strict=True) if vt is not None}


async def test_a_peek_tells_the_first_event_of_each_lane_and_kind(queue: Connection) -> None:
    ahead = await queue.fetchval("select agent.clock() + interval '30 minutes'")
    first = await enqueue_in(queue, 3)
    await enqueue_in(queue, 3)
    scheduled = await enqueue_in(queue, 3, "other", ahead)
    await enqueue_in(queue, 4, "other", ahead + HOUR)
    await enqueue_in(queue, 5, "unhandled")
    peeked = await peek(queue)
    assert found(peeked) == {(3, "job"): first, (3, "other"): scheduled}
    assert first <= peeked.now < scheduled


async def test_a_peek_leaves_out_what_is_before_the_cursors(queue: Connection) -> None:
    await enqueue_in(queue, 3)
    second, other = await enqueue_in(queue, 3), await enqueue_in(queue, 15, "other")
    cursors: list[datetime | None] = [None] * (LANES * len(KINDS))
    cursors[3 * len(KINDS)] = second
    assert found(await peek(queue, cursors)) == {(3, "job"): second, (15, "other"): other}


async def test_a_peek_tells_nothing_of_paused_kinds_but_that_they_are(queue: Connection) -> None:
    await enqueue_in(queue, 3)
    await queue.execute("select agent.pause_kind('job')")
    peeked = await peek(queue)
    assert not found(peeked)
    assert peeked.paused == {"job"}


async def test_what_is_left_to_the_sweep_is_not_worth_a_claim(queue: Connection) -> None:
    await enqueue(queue, max_attempts=1)
    await claim(queue)
    await queue.execute("update agent.event set vt = agent.clock()")
    assert found(await peek(queue)) == {}


async def test_a_peek_neither_takes_nor_waits_for_a_lock(queue: Connection, other: Connection) -> None:
    vt = await enqueue_in(queue, 3)
    async with other.transaction():
        await other.execute("select from agent.event for update")
        async with queue.transaction():
            assert found(await peek(queue)) == {(3, "job"): vt}
            assert await queue.fetchval("select pg_current_xact_id_if_assigned()") is None
    (row,) = await claim(queue)
    assert found(await peek(queue)) == {(3, "job"): row["vt"]}, "its lease"
    await release(queue, pair(row))


async def test_a_peek_tells_when_the_next_schedule_is_due(queue: Connection) -> None:
    assert (await peek(queue)).cron_in is None
    now = await queue.fetchval("select agent.clock()")
    await Engine(queue).set_cron("later", kind="tick", schedule="* * * * *", next_at=now + HOUR)
    assert 3590 < ((await peek(queue)).cron_in or 0) <= 3600
    await Engine(queue).set_cron("overdue", kind="tick", schedule="* * * * *", next_at=now - HOUR)
    assert (await peek(queue)).cron_in == 0


async def test_a_peek_brings_the_queues_figures_along_where_it_is_asked_to(queue: Connection) -> None:
    await enqueue(queue)
    await queue.execute("update agent.measurement set due = '-infinity'")
    peeked = await Engine(queue).peek_events(KINDS, HOUR, measure=True)
    assert peeked.figures is not None
    assert [(kind.kind, kind.pending) for kind in peeked.figures.kinds] == [("job", 1)]
    assert abs(peeked.figures.clock_offset) < timedelta(minutes=1)
    assert (await peek(queue)).figures is None
    await queue.execute(
        "update agent.measurement set due = '-infinity', figures = default, measured_at = null"
    )
