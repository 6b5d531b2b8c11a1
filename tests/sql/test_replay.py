"""Ended events run again as new ones, from their beginning or from a stored step."""

import json
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from surelane.jobs import Continuation, Job, job_text, jobs_text
from tests.sql.conftest import Connect
from tests.sql.queue_steps import (
    Row,
    claim,
    complete,
    drop_history,
    ended,
    enqueue,
    envelope,
    fail,
    insert,
    live,
    pair,
)

MENTION = "slack.app_mention"


async def replay(queue: Connection, identity: int, step: str | None = None, payload: Any = None) -> Row:
    given = None if payload is None else json.dumps(payload)
    row = await queue.fetchrow("select * from agent.replay_event($1, $2, $3)", identity, step, given)
    assert row is not None
    return row


async def run(queue: Connection, kind: str = "job") -> int:
    """Claim the only event and complete it; return its id."""
    (row,) = await claim(queue, kind)
    assert await complete(queue, pair(row)) == ["done"]
    identity: int = row["id"]
    return identity


async def store(queue: Connection, row: Row, name: str, nth: int = 1, *, done: bool = True) -> None:
    answer = await queue.fetchval(
        "select agent.store_step($1, $2, $3, $4, null, '1', '[]', '0s', $5)", *pair(row), name, nth, done
    )
    assert answer == "done"


async def take(queue: Connection, row: Row, name: str, nth: int = 1) -> None:
    """Send a value and let a wait take it."""
    await queue.execute("select agent.send_signal($1, $2, '1', false, 'U1')", row["id"], name)
    taken = await queue.fetchval(
        "select answer from agent.take_signal($1, $2, $3, $4, null)", *pair(row), name, nth
    )
    assert taken == "done"


async def steps_of(queue: Connection, identity: int) -> list[str]:
    rows = await queue.fetch("select label from agent.kept_steps($1, null)", identity)
    return [row["label"] for row in rows]


async def test_replay_is_a_new_event_with_a_key_of_its_own(queue: Connection) -> None:
    await insert(queue, envelope("Ev1", channel="C1", ts="1.1"))
    first = await run(queue, MENTION)
    new = await replay(queue, first)
    assert (new["answer"], new["key"], new["steps"]) == ("replayed", f"Ev1:replay:{new['replay']}", [])
    (row,) = await claim(queue, MENTION)
    assert (row["id"], row["attempts"], row["claim"]) == (new["replay"], 1, 1)
    assert (row["group_key"], json.loads(row["event"])["event_id"]) == ("T1:C1:1.1", "Ev1")
    assert await complete(queue, pair(row)) == ["done"]
    again = await replay(queue, new["replay"])
    assert again["key"] == f"Ev1:replay:{again['replay']}"
    # A delivery that Slack repeats finds the first event, and stores no other.
    assert await insert(queue, envelope("Ev1", channel="C1", ts="1.1")) == first


async def test_both_events_name_each_other_and_who_asked(queue: Connection, connect: Connect) -> None:
    first = await enqueue(queue, item_key="a")
    await run(queue)
    operator = await connect("surelane_worker")
    new = await replay(operator, first, payload={"n": 1})
    old, row = await ended(queue, first), await live(queue, new["replay"])
    assert old is not None
    assert row is not None
    assert json.loads(row["event"]) == {"n": 1}
    assert row["enqueued_by"] == "surelane_worker"
    (of,), (replayed,) = json.loads(row["changes"]), json.loads(old["changes"])
    assert (of["action"], of["id"], of["key"], of["by"]) == ("replay of", first, "a", "surelane_worker")
    assert (replayed["action"], replayed["id"]) == ("replayed as", new["replay"])


async def test_replay_comes_after_what_its_group_has(queue: Connection) -> None:
    first = await enqueue(queue, group_key="g", priority=0, max_attempts=7)
    await run(queue)
    second = await enqueue(queue, group_key="g", priority=0)
    new = await replay(queue, first)
    rows = await claim(queue)
    assert [row["id"] for row in rows] == [second, new["replay"]]
    assert await queue.fetchval("select agent.priority_of(lane) from agent.event where id = $1", second) == 0
    assert [row["max_attempts"] for row in rows] == [3, 7]


async def test_replay_counts_in_the_limit_of_its_key(queue: Connection) -> None:
    declared = json.dumps({"job": {"concurrency": 1, "per": "given"}})
    await queue.fetchval("select agent.declare_limits('w', '{job}', $1)", declared)
    job = Job("job", limit_key="k")
    await queue.execute("select agent.enqueue_jobs($1, 'skip')", jobs_text([job]))
    first = await run(queue)
    new = await replay(queue, first)
    await queue.execute("select agent.enqueue_jobs($1, 'skip')", jobs_text([job]))
    assert [row["id"] for row in await claim(queue)] == [new["replay"]]


async def test_steps_before_the_named_one_are_kept(queue: Connection) -> None:
    await enqueue(queue)
    (row,) = await claim(queue)
    for name, nth in (("zeta", 1), ("loop", 1), ("loop", 2), ("alpha", 1)):
        await store(queue, row, name, nth)
    await store(queue, row, "caught", done=False)
    await store(queue, row, "last", done=False)
    await fail(queue, pair(row), final=True)
    for step, kept in (
        ("last", ["zeta", "loop", "loop (2)", "alpha"]),
        ("loop (2)", ["zeta", "loop"]),
        ("zeta", []),
        (None, []),
    ):
        new = await replay(queue, row["id"], step)
        assert (new["answer"], new["steps"]) == ("replayed", kept)
        assert await steps_of(queue, new["replay"]) == kept
        note = await queue.fetchval(
            "select notes -> 'replay_of' ->> 'key' from agent.event where id = $1", new["replay"]
        )
        assert note == str(row["id"])
    unknown = await replay(queue, row["id"], "loop (3)")
    assert (unknown["answer"], unknown["replay"]) == ("no_step", None)
    assert unknown["steps"] == ["zeta", "loop", "loop (2)", "alpha", "caught", "last"]


async def test_question_is_kept_with_its_answer_or_asked_again(queue: Connection) -> None:
    await enqueue(queue)
    (row,) = await claim(queue)
    await store(queue, row, "stop button:1 asked")
    await store(queue, row, "question:1 asked")
    await take(queue, row, "question:1")
    await store(queue, row, "judged:1 asked")
    await take(queue, row, "judged:1")
    await store(queue, row, "judged:1 may")
    await store(queue, row, "judged:1 refused")
    await store(queue, row, "beside")
    await take(queue, row, "judged:1", 2)
    await store(queue, row, "judged:1 may", 2)
    await store(queue, row, "judged:1 closed")
    await store(queue, row, "last")
    await fail(queue, pair(row), final=True)
    question = ["question:1 asked", "question:1"]
    judged = ["judged:1 asked", "judged:1", "judged:1 may", "judged:1 refused"]
    both = [*question, *judged, "beside", "judged:1 (2)", "judged:1 may (2)", "judged:1 closed"]
    for step, kept in (
        ("last", both),
        ("beside", question),
        ("judged:1 (2)", question),
        ("judged:1 closed", question),
        ("question:1", []),
    ):
        assert (await replay(queue, row["id"], step))["steps"] == kept, step


async def test_signal_that_no_wait_had_taken_goes_with_kept_steps(queue: Connection) -> None:
    await enqueue(queue)
    (row,) = await claim(queue)
    await store(queue, row, "one")
    await take(queue, row, "paid")
    await store(queue, row, "two")
    await queue.execute("select agent.send_signal($1, 'paid', '2', false, 'U2')", row["id"])
    await fail(queue, pair(row), final=True)
    for step, signals in (("two", ["2"]), (None, [])):
        new = await replay(queue, row["id"], step)
        rows = await queue.fetch("select value from agent.signal where event_id = $1", new["replay"])
        assert [each["value"] for each in rows] == signals


async def test_live_event_is_not_replayed(queue: Connection) -> None:
    identity = await enqueue(queue)
    assert (await replay(queue, identity))["answer"] == "live"
    await run(queue)
    await queue.execute("select agent.requeue_events($1)", [identity])
    assert (await replay(queue, identity))["answer"] == "live"
    assert (await replay(queue, identity + 1000))["answer"] == "unknown"


async def test_replay_is_requeued_and_keeps_what_it_is(queue: Connection) -> None:
    await enqueue(queue)
    new = await replay(queue, await run(queue))
    assert await run(queue) == new["replay"]
    await queue.execute("select agent.requeue_events($1)", [new["replay"]])
    row = await live(queue, new["replay"])
    assert row is not None
    assert [change["action"] for change in json.loads(row["changes"])] == ["replay of", "requeued"]


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ([1], "a JSON object, not array"),
        ({"a": "x" * 4_000_001}, "at most four million bytes"),
        ({"a": "\0"}, "cannot be converted"),
    ],
)
async def test_payload_that_cannot_be_stored_is_refused(queue: Connection, payload: Any, why: str) -> None:
    await enqueue(queue)
    identity = await run(queue)
    with pytest.raises(asyncpg.DataError) as refused:
        await replay(queue, identity, payload=payload)
    assert why in f"{refused.value} {refused.value.detail}"
    assert await queue.fetchval("select count(*) from agent.event") == 0


async def test_replayed_continuation_finds_the_children_and_a_replayed_child_is_alone(
    queue: Connection,
) -> None:
    whole = await queue.fetchval(
        "select agent.fan_out($1, $2)", jobs_text([Job("part"), Job("part")]), job_text(Continuation("whole"))
    )
    rows = await claim(queue, "part")
    assert await complete(queue, *map(pair, rows), results=["1", "2"]) == ["done", "done"]
    await run(queue, "whole")
    new = await replay(queue, whole)
    again = await replay(queue, await run(queue, "whole"))
    for identity in (whole, new["replay"], again["replay"]):
        children = await queue.fetch("select result from agent.children($1)", identity)
        assert [child["result"] for child in children] == ["1", "2"]
    child = await replay(queue, rows[0]["id"])
    row = await live(queue, child["replay"])
    assert row is not None
    assert (row["continuation_id"], row["deadline"], row["dedupe_key"]) == (None, None, None)


async def test_history_that_has_gone_is_not_replayed(queue: Connection) -> None:
    await enqueue(queue)
    identity = await run(queue)
    await queue.execute("update agent.test_clock set shift = $1", timedelta(days=30))
    await drop_history(queue, "20 days")
    assert (await replay(queue, identity))["answer"] == "unknown"


async def test_only_operators_replay(queue: Connection) -> None:
    for role, may in (("agent_ingest", False), ("agent_worker", False), ("agent_operator", True)):
        held = await queue.fetchval(
            "select has_function_privilege($1, 'agent.replay_event(int8, text, jsonb)', 'execute')", role
        )
        assert held is may, role
