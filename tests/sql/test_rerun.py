"""Ended events run again as new ones, from their beginning or from a stored step."""

import json
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from surelane.jobs import Continuation, Job, job_text, jobs_text
from tests.sql import queue_steps as do
from tests.sql.conftest import Connect
from tests.sql.queue_steps import Row, envelope, pair

MENTION = "slack.app_mention"


async def rerun(queue: Connection, identity: int, step: str | None = None, payload: Any = None) -> Row:
    given = None if payload is None else json.dumps(payload)
    return await do.only_row(queue, "select * from agent.rerun_as_new($1, $2, $3)", identity, step, given)


async def run(queue: Connection, kind: str = "job") -> int:
    """Claim the only event and complete it; return its id."""
    (row,) = await do.claim(queue, kind)
    assert await do.complete(queue, pair(row)) == ["done"]
    identity: int = row["id"]
    return identity


async def store(queue: Connection, row: Row, name: str, nth: int = 1, *, done: bool = True) -> None:
    answer = await queue.fetchval(
        "select agent.store_step($1, $2, $3, $4, null, '1', '[]', '0s', $5)", *pair(row), name, nth, done
    )
    assert answer == "done"


async def take(queue: Connection, row: Row, name: str, nth: int = 1) -> None:
    await queue.execute("select agent.send_signal($1, $2, '1', false, 'U1')", row["id"], name)
    taken = await queue.fetchval(
        "select answer from agent.take_signal($1, $2, $3, $4, null)", *pair(row), name, nth
    )
    assert taken == "done"


async def test_replay_has_its_own_key_and_both_name_each_other(queue: Connection, connect: Connect) -> None:
    first = await do.enqueue(queue, item_key="a")
    await run(queue)
    operator = await connect("surelane_operator")
    new = await rerun(operator, first, payload={"n": 1})
    old, row = await do.history_of(queue, first), await do.event_of(queue, new["rerun"])
    assert json.loads(row["event"]) == {"n": 1}
    assert row["enqueued_by"] == "surelane_operator"
    (of,), (replayed,) = json.loads(row["changes"]), json.loads(old["changes"])
    assert (of["action"], of["id"], of["key"], of["by"]) == ("replay of", first, "a", "surelane_operator")
    assert (replayed["action"], replayed["id"]) == ("replayed as", new["rerun"])
    await do.insert(queue, envelope("Ev1", channel="C1", ts="1.1"))
    first = await run(queue, MENTION)
    new = await rerun(queue, first)
    assert (new["answer"], new["key"], new["steps"]) == ("rerun", f"Ev1:rerun:{new['rerun']}", [])
    (row,) = await do.claim(queue, MENTION)
    assert (row["id"], row["attempts"], row["claim"]) == (new["rerun"], 1, 1)
    assert (row["group_key"], json.loads(row["event"])["event_id"]) == ("T1:C1:1.1", "Ev1")
    assert await do.complete(queue, pair(row)) == ["done"]
    again = await rerun(queue, new["rerun"])
    assert again["key"] == f"Ev1:rerun:{again['rerun']}"
    # A delivery that Slack repeats finds the first event, and stores no other.
    assert await do.insert(queue, envelope("Ev1", channel="C1", ts="1.1")) == first


async def test_replay_comes_after_what_its_group_has_and_counts_in_its_limit(queue: Connection) -> None:
    first = await do.enqueue(queue, group_key="g", priority=0, max_attempts=7)
    await run(queue)
    second = await do.enqueue(queue, group_key="g", priority=0)
    new = await rerun(queue, first)
    rows = await do.claim(queue)
    assert [row["id"] for row in rows] == [second, new["rerun"]]
    assert await queue.fetchval("select agent.priority_of(lane) from agent.event where id = $1", second) == 0
    assert [row["max_attempts"] for row in rows] == [3, 7]
    declared = json.dumps({"job": {"concurrency": 1, "per": "given"}})
    await queue.fetchval("select agent.declare_limits('w', '{job}', $1)", declared)
    job = Job("job", limit_key="k")
    await queue.execute("select agent.enqueue_jobs($1, 'skip')", jobs_text([job]))
    first = await run(queue)
    new = await rerun(queue, first)
    await queue.execute("select agent.enqueue_jobs($1, 'skip')", jobs_text([job]))
    assert [row["id"] for row in await do.claim(queue)] == [new["rerun"]]


async def test_steps_before_the_named_one_are_kept_with_signals_yet_untaken(queue: Connection) -> None:
    await do.enqueue(queue)
    (row,) = await do.claim(queue)
    for name, nth in (("zeta", 1), ("loop", 1), ("loop", 2), ("alpha", 1)):
        await store(queue, row, name, nth)
    await store(queue, row, "caught", done=False)
    await store(queue, row, "last", done=False)
    await do.fail(queue, pair(row), final=True)
    for step, kept in (
        ("last", ["zeta", "loop", "loop (2)", "alpha"]),
        ("loop (2)", ["zeta", "loop"]),
        ("zeta", []),
        (None, []),
    ):
        new = await rerun(queue, row["id"], step)
        assert (new["answer"], new["steps"]) == ("rerun", kept)
        rows = await queue.fetch("select label from agent.kept_steps($1, null)", new["rerun"])
        assert [each["label"] for each in rows] == kept
        note = await queue.fetchval(
            "select notes -> 'replay_of' ->> 'key' from agent.event where id = $1", new["rerun"]
        )
        assert note == str(row["id"])
    unknown = await rerun(queue, row["id"], "loop (3)")
    assert (unknown["answer"], unknown["rerun"]) == ("no_step", None)
    assert unknown["steps"] == ["zeta", "loop", "loop (2)", "alpha", "caught", "last"]
    await do.enqueue(queue, "other")
    (row,) = await do.claim(queue, "other")
    await store(queue, row, "one")
    await take(queue, row, "paid")
    await store(queue, row, "two")
    await queue.execute("select agent.send_signal($1, 'paid', '2', false, 'U2')", row["id"])
    await do.fail(queue, pair(row), final=True)
    for step, signals in (("two", ["2"]), (None, [])):
        new = await rerun(queue, row["id"], step)
        rows = await queue.fetch("select value from agent.signal where event_id = $1", new["rerun"])
        assert [each["value"] for each in rows] == signals


async def test_question_is_kept_with_its_answer_or_asked_again(queue: Connection) -> None:
    await do.enqueue(queue)
    (row,) = await do.claim(queue)
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
    await do.fail(queue, pair(row), final=True)
    question = ["question:1 asked", "question:1"]
    judged = ["judged:1 asked", "judged:1", "judged:1 may", "judged:1 refused"]
    both = [*question, *judged, "beside", "judged:1 (2)", "judged:1 may (2)", "judged:1 closed"]
    for step, kept in (
        ("last", both),
        ("beside", question),
        ("judged:1 (2)", question),
        ("judged:1 closed", question),
        ("question:1", []),
        ("question", []),
        ("judged", question),
    ):
        assert (await rerun(queue, row["id"], step))["steps"] == kept, step
    await do.enqueue(queue, "other")
    (row,) = await do.claim(queue, "other")
    for nth in (1, 2):
        await store(queue, row, f"ask:{nth} asked")
        await take(queue, row, f"ask:{nth}")
    await store(queue, row, "plan")
    await do.fail(queue, pair(row), final=True)
    for step, kept in (("ask", []), ("ask (1)", []), ("ask (2)", ["ask:1 asked", "ask:1"])):
        assert (await rerun(queue, row["id"], step))["steps"] == kept, step
    for unknown in ("ask (3)", "plan (2)", "other", "as", "%"):
        assert (await rerun(queue, row["id"], unknown))["answer"] == "no_step", unknown


async def test_what_is_live_or_has_gone_does_not_run_again(queue: Connection) -> None:
    identity = await do.enqueue(queue)
    assert (await rerun(queue, identity))["answer"] == "live"
    await run(queue)
    new = (await rerun(queue, identity))["rerun"]
    assert await run(queue) == new
    await queue.execute("select agent.rerun_events($1)", [new])
    again = await do.event_of(queue, new)
    assert again["item_key"] == f"{identity}:rerun:{new}"
    changes = json.loads(again["changes"])
    assert [change["action"] for change in changes] == ["replay of", "requeued"]
    assert (await rerun(queue, new))["answer"] == "live"
    assert (await rerun(queue, identity + 1000))["answer"] == "unknown"
    await queue.execute("update agent.test_clock set shift = $1", timedelta(days=30))
    await do.drop_history(queue, "20 days")
    assert (await rerun(queue, identity))["answer"] == "unknown"


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ([1], "a JSON object, not array"),
        ({"a": "x" * 4_000_001}, "at most four million bytes"),
        ({"a": "\0"}, "cannot be converted"),
    ],
)
async def test_payload_that_cannot_be_stored_is_refused(queue: Connection, payload: Any, why: str) -> None:
    await do.enqueue(queue)
    identity = await run(queue)
    with pytest.raises(asyncpg.DataError) as refused:
        await rerun(queue, identity, payload=payload)
    assert why in f"{refused.value} {refused.value.detail}"
    assert await queue.fetchval("select count(*) from agent.event") == 0


async def test_continuation_runs_again_with_its_children_and_a_child_alone(queue: Connection) -> None:
    whole = await queue.fetchval(
        "select agent.fan_out($1, $2)", jobs_text([Job("part"), Job("part")]), job_text(Continuation("whole"))
    )
    rows = await do.claim(queue, "part")
    assert await do.complete(queue, *map(pair, rows), results=["1", "2"]) == ["done", "done"]
    await run(queue, "whole")
    new = await rerun(queue, whole)
    again = await rerun(queue, await run(queue, "whole"))
    for identity in (whole, new["rerun"], again["rerun"]):
        children = await queue.fetch("select result from agent.children($1)", identity)
        assert [child["result"] for child in children] == ["1", "2"]
    child = await rerun(queue, rows[0]["id"])
    row = await do.event_of(queue, child["rerun"])
    assert (row["continuation_id"], row["deadline"], row["dedupe_key"]) == (None, None, None)
