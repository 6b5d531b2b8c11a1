"""Scheduled jobs are found by their natural key, changed while they wait, and keep a record of changes."""

import asyncio
import json
from typing import Any

import pytest

from surelane.calls import Connection
from surelane.queue import Queue
from surelane_operator.changes import Changes
from surelane_operator.reads.timeline import story_of
from tests.sql.queue_steps import HOUR, claim, complete, event_of, expire, fail, pair
from tests.sql.test_cron import now


async def job_of(queue: Connection, identity: int) -> dict[str, Any]:
    job = await Changes(queue).get(identity)
    assert job is not None
    return job


async def test_a_story_tells_every_change_and_each_claim_whose_worker_died(queue: Connection) -> None:
    client = Queue(queue)
    first, second = await now(queue) + HOUR, await now(queue) + 2 * HOUR
    identity = await client.enqueue("mail", {"n": 1}, item_key="welcome:1", run_at=first, enqueued_by="blog")
    assert await client.reschedule("welcome:1", second) == "rescheduled"
    again = await client.enqueue(
        "mail", {"n": 2}, item_key="welcome:1", run_at=first, enqueued_by="editor", on_duplicate="replace"
    )
    assert again == identity
    assert await client.cancel("welcome:1") == "cancelled"
    await Changes(queue).rerun([identity])
    (row,) = await claim(queue, "mail")
    await fail(queue, pair(row))
    await complete(queue, pair((await claim(queue, "mail"))[0]))

    job = await job_of(queue, identity)
    steps = [(step.what, step.by) for step in story_of(job)]
    assert steps[:3] == [("enqueued", "blog"), ("rescheduled", "surelane"), ("replaced", "editor")]
    assert steps[3:] == [("run again", "surelane"), ("claimed", None), ("claimed", "w1"), ("completed", "w1")]
    moved = next(step for step in story_of(job) if step.what == "rescheduled")
    assert all(at.isoformat()[:16] in (moved.detail or "") for at in (first, second))
    assert job["payload"] == {"n": 2}
    identity = await client.enqueue("mail", item_key="k", max_attempts=3)

    async def story() -> list[tuple[str, str | None]]:
        return [(step.what, step.by) for step in story_of(await job_of(queue, identity))][1:]

    async def lapse() -> None:
        await queue.execute("update agent.event set vt = agent.clock()")

    await claim(queue, "mail", worker="w1")
    await lapse()
    died: list[tuple[str, str | None]] = [("claimed", "w1"), ("lapsed", "w1")]
    assert await story() == died
    await claim(queue, "mail", worker="w2")
    died[0] = ("claimed", None)
    assert await story() == [*died, ("claimed", "w2")]
    await lapse()
    await client.reschedule("k", await now(queue))
    died += [("claimed", None), ("lapsed", "w2"), ("rescheduled", "surelane")]
    assert await story() == died
    await claim(queue, "mail", worker="w3")
    await lapse()
    await expire(queue)
    assert await story() == [*died, ("claimed", "w3"), ("lapsed", "w3"), ("expired", "w3")]


async def test_a_job_shows_when_it_ran_and_is_not_moved_nor_replaced_while_it_runs(queue: Connection) -> None:
    client = Queue(queue)
    due = await now(queue) - HOUR
    identity = await client.enqueue("mail", item_key="k", run_at=due)
    (row,) = await claim(queue, "mail")
    running = await job_of(queue, identity)
    assert (running["run_at"], running["lease_until"]) == (running["claimed"][-1], row["vt"])
    await complete(queue, pair(row))
    ended = await job_of(queue, identity)
    assert (ended["run_at"], ended["lease_until"]) == (running["claimed"][-1], None)
    early = "select abs(extract(epoch from schedule_on - enqueued_on)) < 60 from agent.schedule_queue"
    assert await queue.fetchval(early), "it was due at once"
    waiting = await client.enqueue("mail", item_key="w", run_at=due + 3 * HOUR)
    await client.cancel("w")
    cancelled = await job_of(queue, waiting)
    assert cancelled["run_at"] == due + 3 * HOUR
    keys: Any = {"item_key": "k", "dedupe_key": "d"}
    identity = await client.enqueue("mail", {"n": 1}, item_key="k", dedupe_key="d")
    (row,) = await claim(queue, "mail")
    assert await client.reschedule("k", await now(queue) + HOUR) == "running"
    modes: tuple[Any, ...] = ("replace", "earliest")
    async with asyncio.timeout(60):
        for mode in modes:
            assert await client.enqueue("mail", {"n": 2}, item_key="k", on_duplicate=mode) == identity
            assert await client.enqueue("mail", {"n": 2}, **keys, on_duplicate=mode) == identity
    assert await client.cancel("k") == "running"
    stored = await event_of(queue, identity)
    assert json.loads(stored["event"]) == {"n": 1}
    await fail(queue, pair(row))
    job = await job_of(queue, identity)
    assert (job["status"], job["locked_by"]) == ("cancelled", "w1")


@pytest.mark.parametrize(
    ("mode", "at", "expected"),
    [
        ("skip", 1, (2, 1)),
        ("replace", 1, (1, 2)),
        ("replace", 3, (3, 2)),
        ("earliest", 1, (1, 1)),
        ("earliest", 3, (2, 1)),
    ],
)
async def test_a_duplicate_obeys_its_mode(queue: Connection, mode: Any, at: int, expected: Any) -> None:
    client, base = Queue(queue), await now(queue)
    first = await client.enqueue("mail", {"n": 1}, dedupe_key="d", run_at=base + 2 * HOUR)
    given: Any = {"dedupe_key": "d", "run_at": base + at * HOUR, "on_duplicate": mode}
    assert await client.enqueue("mail", {"n": 2}, **given) == first
    stored = await event_of(queue, first)
    assert (round((stored["vt"] - base) / HOUR), json.loads(stored["event"])["n"]) == expected
