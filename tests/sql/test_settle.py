"""``agent.settle`` settles batches of any outcomes under the fence; events end and expire as documented."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from surelane_worker.handling.outcomes import OUTCOMES
from tests.sql import queue_steps as do
from tests.sql.queue_steps import HOUR, Pair, pair

CONCEPTS = Path(__file__).parents[2] / "docs" / "concepts.md"


async def settle(queue: Connection, *items: tuple[Pair, str, Any]) -> list[str]:
    """Settle claims, each with its outcome and argument; return the answers."""
    rows = await queue.fetch(
        "select answer from agent.settle($1, $2, $3, $4) order by ordinal",
        [identity for (identity, _), _, _ in items],
        [number for (_, number), _, _ in items],
        [outcome for _, outcome, _ in items],
        [None if argument is None else json.dumps(argument) for _, _, argument in items],
    )
    return [row["answer"] for row in rows]


async def claimed(queue: Connection, count: int, **named: Any) -> list[Pair]:
    """Enqueue jobs and claim them; return them in the order of their ids."""
    for _ in range(count):
        await do.enqueue(queue, **named)
    return sorted(map(pair, await do.claim(queue)))


async def test_the_database_the_worker_and_the_docs_know_the_same_outcomes(queue: Connection) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError) as refused:
        await settle(queue, ((1, 1), "unheard of", None))
    known = set(str(refused.value).partition(": ")[2].split(", "))
    settled, told = {each.settled for each in OUTCOMES.values()}, CONCEPTS.read_text()
    missing = {
        "agent.settle": settled - known,
        "handling/outcomes.py": known - settled,
        "concepts.md": {name for name in known if f"`{name}`" not in told},
    }
    assert not any(missing.values()), missing


async def test_every_outcome_in_one_batch(queue: Connection) -> None:
    pairs = await claimed(queue, 8)
    done, failed, final, released, snoozed, fanned, awaiting, lost = pairs
    answers = await settle(
        queue,
        (fanned, "fan_out", {"children": [{"kind": "child"}], "continuation": {"kind": "next"}, "result": 4}),
        (done, "complete", {"answer": 42}),
        (failed, "fail", {"error": {"message": "no"}, "retry_in": 60.5}),
        ((lost[0], lost[1] + 1), "complete", None),
        (final, "fail", {"error": {"message": "never"}, "final": True, "reason": "refused"}),
        (released, "release", None),
        (snoozed, "snooze", {"pause": 30}),
        (awaiting, "await", {"until": "2999-01-01 00:00:00+00"}),
    )
    assert answers == ["done", "done", "done", "stale", "done", "done", "done", "done"]
    row = await do.history_of(queue, done[0])
    assert (row["outcome"], json.loads(row["result"])) == ("completed", {"answer": 42})
    row = await do.event_of(queue, failed[0])
    assert (row["retrying"], row["attempts"], row["claimed_by"]) == (True, 1, None)
    assert 0 < row["visible_in"].total_seconds() <= 60.5
    assert json.loads(row["errors"]) == [{"message": "no"}]
    assert await do.ending(queue, final[0]) == ("failed", "refused")
    row = await do.event_of(queue, released[0])
    assert (row["attempts"], row["claimed_by"]) == (0, None)
    assert row["visible_in"].total_seconds() <= 0
    row = await do.event_of(queue, snoozed[0])
    assert (row["attempts"], row["visible_in"].total_seconds() > 0) == (0, True)
    assert await do.ending(queue, fanned[0]) == ("completed", None)
    assert await queue.fetchval("select waits_for from agent.event where kind = 'next'") == 1
    parked = await queue.fetch(
        "select deadline from agent.event where id = $1 and claimed_by is null", awaiting[0]
    )
    assert [row["deadline"].year for row in parked] == [2999]
    assert await queue.fetchval("select agent.answer_event($1, '1')", awaiting[0]) == "done"
    assert await do.live(queue, lost[0]) is not None


async def test_without_outcomes_all_complete_and_a_claim_settles_once(queue: Connection) -> None:
    """Of two settles of a claim in a batch, in any order of the outcomes, one is done."""
    plain, member, lost = *await claimed(queue, 1), *await claimed(queue, 1, group_key="g"), (-1, 1)
    rows = await queue.fetch(
        "select * from agent.settle($1, $2) order by ordinal",
        [plain[0], lost[0], member[0]],
        [plain[1], lost[1], member[1]],
    )
    assert [tuple(row) for row in rows] == [(1, "done"), (2, "stale"), (3, "done")]
    ((identity, number),) = await claimed(queue, 1)
    answers = await settle(
        queue,
        ((identity, number), "snooze", {"pause": 5}),
        ((identity, number), "complete", None),
        ((identity, number - 1), "fail", {"error": {}}),
    )
    assert sorted(answers) == ["done", "stale", "stale"]


@pytest.mark.parametrize("outcome", ["complete", "fail", "release", "snooze", "await", "fan_out"])
async def test_a_locked_event_is_busy_alone(queue: Connection, other: Connection, outcome: str) -> None:
    arguments: dict[str, Any] = {
        "fail": {"error": {}, "retry_in": 0},
        "snooze": {"pause": 1},
        "await": {"until": None},
        "fan_out": {"children": [], "continuation": {"kind": "next"}},
    }
    held, free = await claimed(queue, 2)
    items = [(held, outcome, arguments.get(outcome)), (free, outcome, arguments.get(outcome))]
    async with do.locked(other, held[0]):
        assert await settle(queue, *items) == ["busy", "done"]
    assert await settle(queue, *items) == ["done", "stale"]


async def test_what_must_wait_or_is_refused_is_busy_alone(queue: Connection, other: Connection) -> None:
    await do.enqueue(queue, "other", item_key="taken")
    refused, unread, free, last = await claimed(queue, 4)
    fan = {"children": [{"kind": "child", "item_key": "taken"}], "continuation": {"kind": "next"}}
    assert await settle(
        queue,
        (refused, "fan_out", fan),
        (unread, "fail", {"error": {}, "retry_in": "soon"}),
        (free, "complete", None),
        (last, "fail", {"error": {}, "final": True}),
    ) == ["busy", "busy", "done", "done"]
    with pytest.raises(asyncpg.UniqueViolationError, match="item key 'taken'"):
        await settle(queue, (refused, "fan_out", fan))
    with pytest.raises(asyncpg.InvalidTextRepresentationError):
        await settle(queue, (unread, "fail", {"retry_in": "soon"}))
    assert await queue.fetchval("select count(*) from agent.event where kind in ('child', 'next')") == 0
    assert await settle(queue, (refused, "complete", None), (unread, "complete", None)) == ["done", "done"]
    refused, free = await claimed(queue, 2)
    await queue.execute(f"alter table agent.event_hist add constraint refused check (id <> {refused[0]})")
    try:
        items = [(refused, "complete", None), (free, "complete", None)]
        assert await settle(queue, *items) == ["busy", "done"]
        with pytest.raises(asyncpg.CheckViolationError):
            await settle(queue, items[0])
    finally:
        await queue.execute("alter table agent.event_hist drop constraint refused")
    waits, free = await claimed(queue, 2)
    fan = {"children": [{"kind": "child", "item_key": "held"}], "continuation": {"kind": "next"}}
    transaction = other.transaction()
    await transaction.start()
    await do.enqueue(other, item_key="held")
    assert await settle(queue, (waits, "fan_out", fan), (free, "complete", None)) == ["busy", "done"]
    await transaction.rollback()
    assert await settle(queue, (waits, "fan_out", fan)) == ["done"]


async def test_a_cancelled_event_ends_however_its_attempt_does(queue: Connection) -> None:
    failed, released, awaiting, done = await claimed(queue, 4)
    for identity, _ in (failed, released, awaiting, done):
        assert await queue.fetchval("select agent.cancel_job($1)", identity) == "running"
    ends = "select array_agg(vt order by id) from agent.event"
    before = await queue.fetchval(ends)
    assert await do.extend(queue, failed, released, awaiting, done) == ["done"] * 4
    assert await queue.fetchval(ends) == before, "no heartbeat renews its lease"
    items: list[tuple[Pair, str, Any]] = [
        (failed, "fail", {}),
        (released, "release", None),
        (awaiting, "await", {}),
        (done, "complete", None),
    ]
    assert await settle(queue, *items) == ["done"] * 4
    for identity, _ in (failed, released, awaiting):
        assert await do.ending(queue, identity) == ("cancelled", "cancelled while running")
    assert await do.ending(queue, done[0]) == ("completed", None)


async def test_a_wait_takes_what_came_before_it_was_stored_or_ends_in_time(queue: Connection) -> None:
    ((identity, number),) = await claimed(queue, 1)
    await queue.execute("select agent.send_signal($1, 'go', '7', false, 'U1')", identity)
    take = "select answer || coalesce(signal ->> 'value', '') from agent.take_signal($1, $2, 'go', $3, '1 h')"
    for nth, taken in ((1, "done7"), (2, "done")):
        wait = {"sort": "wait", "name": "go", "nth": nth, "seconds": 3600}
        assert await settle(queue, ((identity, number), "suspend", {"waits": [wait]})) == ["done"]
        if nth == 2:
            assert await do.claim(queue) == []
            await do.advance(queue, HOUR)
        (row,) = await do.claim(queue)
        number = row["claim"]
        assert await queue.fetchval(take, identity, number, nth) == taken


async def test_an_unknown_outcome_is_a_clear_error(queue: Connection) -> None:
    (item,) = await claimed(queue, 1)
    for outcome in ("finish", None):
        with pytest.raises(asyncpg.InvalidParameterValueError, match="every claim has an outcome: complete"):
            await settle(queue, (item, outcome, None))  # type: ignore[arg-type]
    assert await settle(queue) == []


async def test_at_the_maximum_an_event_fails_with_every_error_else_after_its_pause(queue: Connection) -> None:
    identity = await do.enqueue(queue)
    for _ in range(3):
        (row,) = await do.claim(queue)
        assert await do.fail(queue, pair(row)) == ["done"]
    assert await do.claim(queue) == []
    assert await do.ending(queue, identity) == ("failed", "attempts_exhausted")
    row_ended = await do.history_of(queue, identity)
    assert [error["message"] for error in json.loads(row_ended["errors"])] == [
        f"attempt with claim {number}" for number in (1, 2, 3)
    ]
    assert (row_ended["attempts"], len(row_ended["claimed"]), row_ended["finished_by"]) == (3, 3, "w1")
    pairs = await claimed(queue, 3)
    before = await queue.fetchval("select agent.clock()")
    pauses = zip(pairs, (-1, 2, 1), strict=True)
    items = [(each, "fail", {"error": {"message": "no"}, "retry_in": 3600 * hours}) for each, hours in pauses]
    assert await settle(queue, *items) == ["done"] * 3
    rows = await queue.fetch("select vt - $1 as pause from agent.event order by id", before)
    assert [row["pause"] // HOUR for row in rows] == [0, 2, 1]


async def test_neither_a_paused_kind_nor_a_live_lease_expires(queue: Connection) -> None:
    """A lease does not at the last attempt, past the deadline or at any age of the event."""
    deadline = await queue.fetchval("select agent.clock() + interval '1 minute'")
    await do.enqueue(queue, "parked", deadline=deadline)
    await do.enqueue(queue, "parked", max_attempts=1)
    await do.claim_one(queue, 1, timedelta(minutes=1))
    await queue.execute("select agent.pause_kind('parked')")
    await do.advance(queue, timedelta(days=30))
    assert await do.sweep(queue) == 0
    await queue.execute("select agent.resume_kind('parked')")
    assert await do.sweep(queue) == 2
    deadline = await queue.fetchval("select agent.clock() + interval '1 minute'")
    identity = await do.enqueue(queue, max_attempts=1, deadline=deadline)
    await do.claim(queue, lease=HOUR * 9)
    await do.advance(queue, HOUR * 8)
    assert await do.sweep(queue) == 0
    assert await do.live(queue, identity) is not None


async def test_a_passed_deadline_expires_what_does_not_run(queue: Connection, other: Connection) -> None:
    deadline = await queue.fetchval("select agent.clock() + interval '20 minutes'")
    waiting = await do.enqueue(queue, "waiting", deadline=deadline)
    lapsed = await do.enqueue(queue, deadline=deadline)
    assert len(await do.claim(queue)) == 1
    await do.advance(queue, timedelta(minutes=19, seconds=30))
    assert await do.sweep(queue) == 0
    await do.advance(queue, timedelta(seconds=31))
    assert await do.sweep(queue) == 2
    for identity in (waiting, lapsed):
        assert await do.ending(queue, identity) == ("expired", "deadline_passed")
    first = await do.enqueue(queue)
    await do.enqueue(queue)
    await do.advance(queue, HOUR * 2)
    async with do.locked(other, first):
        assert await do.sweep(queue) == 1
    assert await do.sweep(queue) == 1


async def test_sweeps_are_bounded_and_a_workers_expires_by_age_only_its_kinds(queue: Connection) -> None:
    await queue.execute("select agent.enqueue('job') from generate_series(1, 25)")
    await do.advance(queue, HOUR * 2)
    assert [await queue.fetchval("select agent.sweep_events(_limit => 10)") for _ in range(4)] == [
        10,
        10,
        5,
        0,
    ]
    await queue.execute("select agent.enqueue('job') from generate_series(1, 2500)")
    await do.advance(queue, HOUR * 2)
    assert await do.expire(queue) == 2500
    mine, others = await do.enqueue(queue, "slack.mine"), await do.enqueue(queue, "slack.others")
    await do.advance(queue, HOUR * 2)
    by_age = "select agent.sweep_events(_kinds => array['slack.mine'], _by_age => $1)"
    assert await queue.fetchval(by_age, False) == 0
    assert await queue.fetchval(by_age, True) == 1
    assert await do.ending(queue, mine) == ("expired", "too_old")
    assert await do.live(queue, others) is not None
