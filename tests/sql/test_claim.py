"""Claims take the right events, in order. Peeks find what a worker waits for, and claim nothing."""

import random
from collections import Counter
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from surelane.events import Event
from surelane.queue import Queue
from surelane_service.engine import Engine, Peek
from tests.sql import queue_steps as do
from tests.sql.queue_steps import HOUR, TEN_MINUTES, envelope, pair

LANES = 16


async def test_the_client_puts_each_column_of_a_claim_into_its_field(queue: Connection) -> None:
    assert await do.claim_one(queue) is None
    assert await do.claim(queue) == []
    identity = await do.insert(queue, envelope("Ev1"))
    vt = await queue.fetchval(
        "update agent.event set attempts = 1, max_attempts = 7, errors = '[1]', notes = '{}', traceparent = 't'"
        ", lane = 5, enqueued_at = enqueued_at - interval '1 day' returning vt"
    )
    (batched,) = await Engine(queue).claim_events(["slack.app_mention"], 1, worker="w")
    row = await do.event_of(queue, identity)
    named = {**row, "body": row["event"], "claim": len(row["claimed"]), "prior_vt": vt, "workspace": None}
    assert batched == Event(**{field.name: named[field.name] for field in fields(Event) if field.compare})


async def test_a_claim_is_the_row_as_it_is_afterwards_and_names_the_application(queue: Connection) -> None:
    identity = await do.insert(queue, envelope("Ev1"))
    before = await queue.fetchval("select agent.clock()")
    claimed = await do.claim_single(queue)
    stored = await do.event_of(queue, identity)
    assert dict(claimed) == {name: stored[name] for name in claimed.keys()}  # noqa: SIM118 - a record iterates its values
    assert (claimed["attempts"], len(claimed["claimed"]), claimed["heartbeat_at"]) == (1, 1, None)
    assert claimed["claimed_by"] == "surelane"
    assert before <= claimed["claimed"][0] <= await queue.fetchval("select agent.clock()")
    assert claimed["vt"] - claimed["claimed"][0] == TEN_MINUTES
    await do.insert(queue, envelope("Ev2"))
    await queue.execute("set application_name = 'my-worker'")
    claimed = await do.claim_single(queue)
    assert claimed["claimed_by"] == "my-worker"


async def test_a_batch_has_what_a_worker_needs_and_is_no_larger_than_asked_for(queue: Connection) -> None:
    identity = await do.enqueue(queue, item_key="welcome:1", max_attempts=7, traceparent="00-ab")
    due = await queue.fetchval("select vt from agent.event")
    (row,) = await do.claim(queue, lease=timedelta(minutes=2), worker="w7")
    assert (row["id"], row["kind"], row["item_key"]) == (identity, "job", "welcome:1")
    assert (row["claim"], row["attempts"]) == (1, 1)
    assert (row["prior_vt"], row["max_attempts"], row["traceparent"], row["event"]) == (due, 7, "00-ab", "{}")
    stored = await do.event_of(queue, identity)
    assert (stored["claimed_by"], stored["heartbeat_at"]) == ("w7", stored["claimed"][0])
    assert (stored["vt"], row["lane"]) == (stored["claimed"][0] + timedelta(minutes=2), stored["lane"])
    await queue.execute("select agent.enqueue('job') from generate_series(1, 30)")
    assert [len(await do.claim(queue, limit=12)) for _ in range(4)] == [12, 12, 6, 0]
    assert await do.claim(queue, limit=0) == []


async def test_exhausted_and_locked_events_are_passed_over(queue: Connection, other: Connection) -> None:
    """This holds for more exhausted ones than one claim passes over: it has them swept."""
    await queue.execute("select agent.enqueue('job') from generate_series(1, 250)")
    assert len(await do.claim(queue, limit=250, max_attempts=1)) == 250
    await do.advance(queue, TEN_MINUTES + timedelta(seconds=1))
    fresh = await do.enqueue(queue)
    await queue.execute("update agent.event set lane = 0")
    assert [row["id"] for row in await do.claim(queue, limit=1, max_attempts=1)] == [fresh]
    assert await queue.fetchval("select count(*) from agent.event_hist where outcome = 'expired'") == 250
    first = await do.enqueue(queue)
    second = await do.enqueue(queue)
    async with do.locked(other, first):
        assert [row["id"] for row in await do.claim(queue)] == [second]
    assert [row["id"] for row in await do.claim(queue)] == [first]


async def test_lanes_are_drawn_evenly_and_the_oldest_of_a_lane_comes_first(queue: Connection) -> None:
    await queue.execute("select agent.enqueue('job') from generate_series(1, 1600)")
    for drawn in (
        "select lane from agent.event",
        "select (c).lane from (select agent.claim_event() as c from generate_series(1, 480) offset 0) as claims",
    ):
        rows = await queue.fetch(drawn)
        counts, expected = Counter(row["lane"] for row in rows), len(rows) / LANES
        # With 15 degrees of freedom, chi square exceeds 50 in 1 of 85,000 fair trials.
        assert sum((counts[lane] - expected) ** 2 / expected for lane in range(LANES)) < 50
    await queue.execute("delete from agent.event")
    now = await queue.fetchval("select agent.clock()")
    await queue.execute("select agent.enqueue('job') from generate_series(1, 50)")
    await queue.execute(
        "update agent.event set lane = 3, vt = $1::timestamptz - make_interval(secs => id % 7)", now
    )
    vts = [row["prior_vt"] for row in await do.claim(queue, limit=10)]
    rest = await queue.fetchval("select min(vt) from agent.event where claimed_by is null")
    assert len(vts) == 10
    assert max(vts) <= rest


async def test_a_cursor_starts_the_scan_and_nothing_becomes_visible_behind_it(queue: Connection) -> None:
    """Released, failed, requeued and promoted events are visible from now, not from an earlier time."""
    kinds = ["a", "b"]
    for kind in kinds:
        await queue.execute("select agent.enqueue($1) from generate_series(1, 4)", kind)
    await queue.execute("update agent.event set lane = 5")
    ahead = await queue.fetchval("select max(vt) + interval '1 us' from agent.event where kind = 'b'")
    cursors: list[datetime | None] = [None] * (LANES * len(kinds))
    cursors[5 * len(kinds) + 1] = ahead

    async def claimed() -> Counter[str]:
        rows = await queue.fetch("select * from agent.claim_events($1, 100, _cursors => $2)", kinds, cursors)
        return Counter(row["kind"] for row in rows)

    assert await claimed() == {"a": 4}
    cursors[5 * len(kinds) + 1] = await queue.fetchval("select agent.clock() + interval '1 hour'")
    assert await claimed() == {"b": 4}, "a cursor ahead of the clock is dropped"
    await queue.execute("delete from agent.event")
    await do.enqueue(queue, "released")
    await do.enqueue(queue, "failed")
    await do.enqueue(queue, "requeued")
    await do.enqueue(queue, "promoted", group_key="g")
    await do.enqueue(queue, "promoted", group_key="g")
    await do.advance(queue, timedelta(minutes=30))
    rows = {row["kind"]: row for row in await do.claim(queue, "released", "failed", "requeued")}
    (head,) = [await do.claim_one(queue)]
    assert head is not None
    now = await queue.fetchval("select agent.clock()")
    await do.release(queue, pair(rows["released"]))
    await do.fail(queue, pair(rows["failed"]))
    await do.complete(queue, pair(rows["requeued"]))
    await queue.execute("select agent.rerun_events($1)", [rows["requeued"]["id"]])
    await queue.execute("select agent.delete_event($1)", head["id"])
    vts = await queue.fetch("select kind, vt from agent.event")
    assert len(vts) == 4
    assert {row["kind"] for row in vts if row["vt"] < now} == set()


@pytest.mark.parametrize("arguments", [(None, TEN_MINUTES), (3, None)])
async def test_a_claim_without_bounds_is_refused_or_finds_nothing(queue: Connection, arguments: Any) -> None:
    identity = await do.enqueue(queue)
    try:
        claimed = await do.claim_one(queue, *arguments)
    except asyncpg.NotNullViolationError:
        claimed = None
    assert claimed is None
    row = await do.event_of(queue, identity)
    assert row["attempts"] == 0


KINDS = ["job", "other"]


async def enqueue_in(queue: Connection, lane: int, kind: str = "job", at: datetime | None = None) -> datetime:
    """Enqueue a job in a lane; return the time when it becomes visible."""
    identity = await do.enqueue(queue, kind, run_at=at)
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


async def test_a_peek_tells_nothing_of_paused_kinds_but_that_they_are(queue: Connection) -> None:
    await enqueue_in(queue, 3)
    await queue.execute("select agent.pause_kind('job')")
    peeked = await peek(queue)
    assert not found(peeked)
    assert peeked.paused == {"job"}
    assert await do.claim(queue, "job") == await do.claim(queue, *KINDS) == [], "nor is one claimed"


async def test_what_is_left_to_the_sweep_is_not_worth_a_claim(queue: Connection) -> None:
    await do.enqueue(queue, max_attempts=1)
    await do.claim(queue)
    await queue.execute("update agent.event set vt = agent.clock()")
    assert found(await peek(queue)) == {}


async def test_a_peek_takes_no_lock_and_skips_what_is_passed(queue: Connection, other: Connection) -> None:
    vt = await enqueue_in(queue, 3)
    async with other.transaction():
        await other.execute("select from agent.event for update")
        async with queue.transaction():
            assert found(await peek(queue)) == {(3, "job"): vt}
            assert await queue.fetchval("select pg_current_xact_id_if_assigned()") is None
    (row,) = await do.claim(queue)
    assert found(await peek(queue)) == {(3, "job"): row["vt"]}, "its lease"
    await do.release(queue, pair(row))
    second, third = await enqueue_in(queue, 3), await enqueue_in(queue, 15, "other")
    cursors: list[datetime | None] = [None] * (LANES * len(KINDS))
    cursors[3 * len(KINDS)] = second
    assert found(await peek(queue, cursors)) == {(3, "job"): second, (15, "other"): third}


async def test_a_peek_tells_the_next_schedule_and_if_asked_the_queues_figures(queue: Connection) -> None:
    assert (await peek(queue)).cron_in is None
    now = await queue.fetchval("select agent.clock()")
    await Engine(queue).set_cron("later", kind="tick", schedule="* * * * *", next_at=now + HOUR)
    assert 3000 < ((await peek(queue)).cron_in or 0) <= 3600
    await Engine(queue).set_cron("overdue", kind="tick", schedule="* * * * *", next_at=now - HOUR)
    assert (await peek(queue)).cron_in == 0
    await do.enqueue(queue)
    await queue.execute("update agent.measurement set due = '-infinity'")
    peeked = await Engine(queue).peek_events(KINDS, HOUR, measure=True)
    assert peeked.figures is not None
    assert [(kind.kind, kind.pending) for kind in peeked.figures.kinds] == [("job", 1)]
    assert abs(peeked.figures.clock_offset) < timedelta(minutes=1)
    assert (await peek(queue)).figures is None
    await queue.execute("update agent.measurement set due = '-infinity', figures = '{}', measured_at = null")


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
