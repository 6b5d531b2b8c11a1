"""Only the standing claim may end, fail, snooze or extend an event. Others change nothing."""

import json
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from surelane.calls import Connection
from surelane_operator.changes import Changes
from surelane_operator.reads.timeline import story_of
from tests.sql import queue_steps as do
from tests.sql.queue_steps import TEN_MINUTES, Pair, pair

Settle = Callable[[Connection, Pair], Awaitable[list[str]]]


async def snoozed(queue: Connection, item: Pair) -> list[str]:
    return [await do.snooze(queue, item, timedelta(minutes=1))]


async def noted(queue: Connection, item: Pair) -> list[str]:
    return [await queue.fetchval("select agent.note_event($1, $2, $3)", *item, '{"stream": "1.1"}')]


async def stored(queue: Connection, item: Pair, result: str = "1") -> list[str]:
    store = "select agent.store_step($1, $2, 'look', 1, null, $3, '[]', '0s', true)"
    return [await queue.fetchval(store, *item, result)]


ENDING: dict[str, Settle] = {
    "complete": do.complete,
    "fail": do.fail,
    "release": do.release,
    "snooze": snoozed,
}
SETTLES: dict[str, Settle] = {**ENDING, "extend": do.extend, "note": noted}
settles = pytest.mark.parametrize("settle", [*SETTLES.values(), stored], ids=(*SETTLES, "step"))


async def unchanged_by(queue: Connection, identity: int, settle: Settle, item: Pair) -> list[str]:
    """Settle; return the answer, and check that neither the queue nor history changed."""
    before = (
        await queue.fetch("select * from agent.event where id = $1", identity),
        await do.ended(queue, identity),
    )
    answers = await settle(queue, item)
    assert before == (
        await queue.fetch("select * from agent.event where id = $1", identity),
        await do.ended(queue, identity),
    )
    return answers


@settles
async def test_a_lapsed_claim_settles_if_free(queue: Connection, settle: Settle, other: Connection) -> None:
    """While its row is locked, the event is busy and keeps its claim."""
    await do.enqueue(queue)
    (row,) = await do.claim(queue)
    await do.advance(queue, timedelta(hours=1))
    assert await settle(queue, pair(row)) == ["done"]
    identity = await do.enqueue(queue, "other")
    (row,) = await do.claim(queue, "other")
    async with do.locked(other, identity):
        assert await unchanged_by(queue, identity, settle, pair(row)) == ["busy"]
    assert await settle(queue, pair(row)) == ["done"]


@settles
async def test_the_claim_of_another_is_stale(queue: Connection, settle: Settle) -> None:
    await do.enqueue(queue)
    (first,) = await do.claim(queue)
    await do.advance(queue, TEN_MINUTES)
    (second,) = await do.claim(queue, worker="w2")
    assert await unchanged_by(queue, first["id"], settle, pair(first)) == ["stale"]
    assert await settle(queue, pair(second)) == ["done"]
    await do.enqueue(queue, "other")
    (row,) = await do.claim(queue, "other", worker="w2")
    # A standby that took over may have given the number again. A session may name its worker.
    await queue.execute("set surelane.worker = 'w1'")
    assert await unchanged_by(queue, row["id"], settle, pair(row)) == ["stale"]
    await queue.execute("set surelane.worker = 'w2'")
    assert await settle(queue, pair(row)) == ["done"]


@settles
@pytest.mark.parametrize("ending_settle", ENDING.values(), ids=ENDING)
async def test_a_claim_that_ended_is_stale(queue: Connection, settle: Settle, ending_settle: Settle) -> None:
    """This holds after a failure or a release too, when the number of claims is still the same."""
    await do.enqueue(queue)
    (row,) = await do.claim(queue)
    assert await ending_settle(queue, pair(row)) == ["done"]
    assert await unchanged_by(queue, row["id"], settle, pair(row)) == ["stale"]


@settles
async def test_what_was_never_claimed_is_stale(queue: Connection, settle: Settle) -> None:
    identity = await do.enqueue(queue)
    for number in (0, 1):
        assert await unchanged_by(queue, identity, settle, (identity, number)) == ["stale"]
    assert await settle(queue, (identity + 1000, 1)) == ["stale"]


@pytest.mark.parametrize("settle", SETTLES.values(), ids=SETTLES)
async def test_a_changing_group_makes_it_busy(queue: Connection, other: Connection, settle: Settle) -> None:
    head = await do.enqueue(queue, group_key="g")
    member = await do.enqueue(queue, group_key="g")
    rows = {row["id"]: row for row in await do.claim(queue)}
    async with do.locked(other, head):
        assert await unchanged_by(queue, member, settle, pair(rows[member])) == ["busy"]
    assert await settle(queue, pair(rows[member])) == ["done"]


async def test_each_item_of_a_batch_has_its_own_answer(queue: Connection, other: Connection) -> None:
    for _ in range(4):
        await do.enqueue(queue)
    done, late, busy, twice = await do.claim(queue)
    await do.release(queue, pair(late))
    async with do.locked(other, busy["id"]):
        items = pair(twice), pair(busy), (999_999_999, 1), pair(late), pair(twice), pair(done)
        assert await do.complete(queue, *items) == ["done", "busy", "stale", "stale", "stale", "done"]
    assert await queue.fetchval("select count(*) from agent.event_hist") == 2
    assert await do.complete(queue) == []


@pytest.mark.parametrize("order", [1, -1])
async def test_of_two_claims_of_an_event_in_a_batch_the_later_counts(queue: Connection, order: int) -> None:
    """A worker whose lease ran out, and which claimed the event again, may settle both at once."""
    identity = await do.enqueue(queue)
    (first,) = await do.claim(queue)
    await do.advance(queue, TEN_MINUTES)
    (second,) = await do.claim(queue)
    items = [(pair(first), '"old"', "stale"), (pair(second), '"new"', "done")][::order]
    pairs, results, answers = zip(*items, strict=True)
    assert await do.complete(queue, *pairs, results=results) == list(answers)
    row = await do.history_of(queue, identity)
    assert row["result"] == '"new"'
    identity = await do.enqueue(queue)
    (first,) = await do.claim(queue)
    await do.advance(queue, TEN_MINUTES)
    (second,) = await do.claim(queue)
    assert await do.fail(queue, *[pair(first), pair(second)][::order]) == ["stale", "done"][::order]
    row = await do.event_of(queue, identity)
    assert json.loads(row["errors"]) == [{"message": "attempt with claim 2"}]


async def test_results_go_to_their_events_and_deleting_ends_one_whoever_holds_it(queue: Connection) -> None:
    """The documented call needs no claim, and an unknown id changes nothing."""
    identities = [await do.enqueue(queue) for _ in range(5)]
    rows = {row["id"]: row for row in await do.claim(queue)}
    shuffled = identities[::2] + identities[1::2]
    results = [None if identity == shuffled[1] else json.dumps(identity) for identity in shuffled]
    await do.complete(queue, *(pair(rows[identity]) for identity in shuffled), results=results)
    stored = await queue.fetch("select id, result from agent.event_hist order by id")
    assert [(row["id"], row["result"]) for row in stored] == sorted(zip(shuffled, results, strict=True))
    waiting, running = await do.enqueue(queue), await do.enqueue(queue, "other")
    (row,) = await do.claim(queue, "other")
    for identity in (waiting, running, running, 999_999_999):
        await queue.execute("select agent.delete_event($1)", identity)
    assert await do.ending(queue, waiting) == ("completed", None)
    assert await do.ending(queue, running) == ("completed", None)
    assert await do.complete(queue, pair(row)) == ["stale"]


async def test_an_extended_lease_counts_from_now_and_beats(queue: Connection) -> None:
    await do.enqueue(queue)
    (row,) = await do.claim(queue)
    await do.advance(queue, timedelta(minutes=9))
    assert await do.extend(queue, pair(row), lease=timedelta(minutes=20)) == ["done"]
    await do.advance(queue, timedelta(minutes=19))
    assert await do.claim(queue) == []
    stored = await do.event_of(queue, row["id"])
    assert stored["vt"] - stored["heartbeat_at"] == timedelta(minutes=20)


async def test_a_note_is_there_at_the_next_attempt_and_a_step_keeps_its_result(queue: Connection) -> None:
    await do.enqueue(queue)
    (first,) = await do.claim(queue)
    assert await noted(queue, pair(first)) == ["done"]
    await do.fail(queue, pair(first))
    (second,) = await do.claim(queue)
    assert (first["notes"], json.loads(second["notes"])) == (None, {"stream": "1.1"})
    await do.enqueue(queue)
    (row,) = await do.claim(queue)
    assert [await stored(queue, pair(row), result) for result in ("1", "2")] == [["done"]] * 2
    assert await queue.fetchval("select result::text from agent.step") == "1"


@pytest.mark.parametrize("how", ["cancel", "reschedule", "replace", "delete", "delete by hand"])
async def test_the_members_of_a_lapsed_head_are_fenced_however_it_leaves(queue: Connection, how: str) -> None:
    """A member with one attempt, which never ran, may still run."""
    head = await do.enqueue(queue, group_key="g", item_key="head")
    only = await do.enqueue(queue, group_key="g", max_attempts=1)
    assert len(await do.claim(queue)) == 2
    await do.advance(queue, TEN_MINUTES)
    later = await queue.fetchval("select agent.clock() + interval '1 hour'")
    match how:
        case "cancel":
            await queue.execute("select agent.cancel_event('head')")
        case "reschedule":
            await queue.execute("select agent.reschedule_event('head', $1)", later)
        case "replace":
            await do.enqueue(queue, group_key="g", item_key="head", on_duplicate="replace", run_at=later)
        case "delete":
            await queue.execute("select agent.delete_event($1)", head)
        case _:
            await queue.execute("delete from agent.event where id = $1", head)
    await do.sweep(queue)
    rows = await do.claim(queue)
    assert [(row["id"], row["attempts"], row["claim"]) for row in rows] == [(only, 1, 2)]
    assert await do.complete(queue, (only, 1), (only, 2)) == ["stale", "done"]


async def test_the_moments_of_claims_are_bounded_and_claims_keep_their_numbers(queue: Connection) -> None:
    identity = await do.enqueue(queue, dedupe_key="d", max_attempts=1000)
    for number in range(1, 121):
        (row,) = await do.claim(queue)
        assert row["claim"] == number
        assert await do.complete(queue, (identity, number - 1)) == ["stale"]
        assert await do.release(queue, pair(row)) == ["done"]
    await do.claim_single(queue)
    facts = await queue.fetchrow(
        "select cardinality(claimed) as kept, array_upper(claimed, 1) as claim"
        ", claimed[array_upper(claimed, 1)] = (select max(at) from unnest(claimed) as at) as last_is_last"
        " from agent.event"
    )
    assert facts is not None
    assert tuple(facts) == (100, 121, True)
    job = await Changes(queue).get(identity)
    told = [(step.detail, step.by) for step in story_of(job or {}) if step.what == "claimed"]
    assert job is not None
    assert job["locked_by"]
    assert told == [
        *((f"claim {number}", None) for number in range(22, 121)),
        ("claim 121", job["locked_by"]),
    ]
    assert await do.complete(queue, (identity, 100), (identity, 121)) == ["stale", "done"]
