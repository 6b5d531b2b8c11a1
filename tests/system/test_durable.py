"""Durable handlers: stored steps are not run again, and suspended events wait without a worker."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from surelane.queue import Queue
from surelane_operator.changes import Changes
from surelane_operator.reads.filters import Filter
from surelane_operator.reads.timeline import story_of
from tests.processes import Service, until
from tests.system.worker import ended, enqueue, live, worker

pytestmark = pytest.mark.usefixtures("running")
HANDLERS = "tests.system.durable_handlers:handlers"


@pytest.fixture(scope="module")
async def running(shared_database: str) -> AsyncIterator[Service]:
    async with worker(shared_database, SURELANE_HANDLERS=HANDLERS, SURELANE_CONCURRENCY="8") as started:
        yield started


@pytest.fixture(scope="module")
async def connection(shared_database: str) -> AsyncIterator[Connection]:
    connected = await asyncpg.connect(shared_database)
    yield connected
    await connected.close()


async def result_of(connection: Connection, identity: int) -> Any:
    """Wait for the end of an event; return its result."""
    row = await ended(connection, identity)
    assert row["outcome"] == "completed", row
    return json.loads(row["result"] or "null")


async def suspended(connection: Connection, identity: int) -> None:
    """Wait until an event is suspended."""
    reason = None
    async with asyncio.timeout(60):
        while reason != "suspended":
            reason = await connection.fetchval("select reason from agent.why_waiting($1)", identity)
            await asyncio.sleep(0.01)


async def test_no_stored_step_runs_again_although_the_worker_is_killed_everywhere(
    database: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    settings = {"SURELANE_HANDLERS": HANDLERS, "SURELANE_WORKER_NAME": "mortal"}
    deaths = 0
    connection = await asyncpg.connect(database)
    identity = await enqueue(connection, "mortal", {"log": str(log)}, max_attempts=100)
    await Queue(connection).signal(str(identity), "answer", 5)
    while not await connection.fetchval("select count(*) from agent.event_hist"):
        async with worker(database, ready="", **settings) as running:
            end = asyncio.create_task(ended(connection, identity, within=60))
            await asyncio.wait(
                [end, asyncio.create_task(running.child.wait())], return_when="FIRST_COMPLETED"
            )
            if not end.done():
                end.cancel()
                await asyncio.wait([end])
                assert running.child.exit_code == -signal.SIGKILL, running.output
                deaths += 1
    result = await result_of(connection, identity)
    await connection.close()
    assert (result["total"], result["text"]) == (16, "deploy")
    lines = log.read_text().splitlines()
    assert deaths == sum(line.startswith("died") for line in lines) == 11
    ran = ["ran count 1", "ran count 2", "ran count 5", "ran plan"]
    assert sorted(line for line in lines if line.startswith("ran")) == ran


async def test_steps_count_up_and_are_not_run_again(connection: Connection, tmp_path: Path) -> None:
    log = tmp_path / "log"
    calls = [["a", "1"], ["b", "2"], ["b", "3"]]
    payload = {"log": str(log), "runs": 2, "run1": calls[:2], "run2": calls}
    identity = await enqueue(connection, "steps", payload)
    assert await result_of(connection, identity) == ["1", "2", "3"]
    assert log.read_text().split() == ["1", "2", "3"]


async def test_step_for_other_arguments_is_refused(connection: Connection, tmp_path: Path) -> None:
    payload = {"log": str(tmp_path / "log"), "runs": 2, "run1": [["a", "1"]], "run2": [["a", "2"]]}
    row = await ended(connection, await enqueue(connection, "steps", payload, max_attempts=2))
    error = json.loads(row["errors"])[-1]
    assert (row["outcome"], error["type"]) == ("failed", "StepMismatchError")
    assert "step a was stored for other arguments" in error["message"]


async def test_step_that_became_a_sleep_is_refused(connection: Connection) -> None:
    row = await ended(connection, await enqueue(connection, "renamed", max_attempts=2))
    error = json.loads(row["errors"])[-1]
    assert (
        error["message"] == "name was stored as a step and is now used as a sleep: give the sleep a new name"
    )


async def test_step_that_is_gone_is_logged(running: Service, connection: Connection, tmp_path: Path) -> None:
    payload = {
        "log": str(tmp_path / "log"),
        "runs": 2,
        "run1": [["a", "1"], ["b", "1"]],
        "run2": [["a", "1"]],
    }
    assert await result_of(connection, await enqueue(connection, "steps", payload)) == ["1"]
    assert any("stored steps were not used" in line and '"b"' in line for line in running.output)


@pytest.mark.parametrize(
    ("value", "why"), [("object", "is not JSON"), ("nan", "is not JSON"), ("large", "has 1,000,003 bytes")]
)
async def test_result_that_cannot_be_stored_fails_the_step(
    connection: Connection, value: str, why: str
) -> None:
    row = await ended(connection, await enqueue(connection, "result", {"value": value}, max_attempts=1))
    (error,) = json.loads(row["errors"])
    assert error["type"] == "StepMismatchError"
    assert why in error["message"]


async def test_result_goes_through_json_at_once(connection: Connection) -> None:
    assert await result_of(connection, await enqueue(connection, "result", {"value": "tuple"})) == [
        1,
        "a\ufffdb",
    ]


async def test_failed_try_is_repeated_and_recorded(connection: Connection, tmp_path: Path) -> None:
    identity = await enqueue(connection, "flaky", {"log": str(tmp_path / "log")})
    assert await result_of(connection, identity) == "done"
    (step,) = json.loads(await connection.fetchval("select agent.list_steps($1)", identity))
    assert [error["message"] for error in step["errors"]] == ["not yet"]
    assert (step["name"], step["attempt"]) == ("flaky", 1)
    assert step["finished_at"] >= step["started_at"]


async def test_tags_of_a_handler_are_kept_with_its_event(connection: Connection) -> None:
    tags = {"customer": "acme", "order": 17, "paid": True, "gone": "x"}
    identity = await enqueue(connection, "tagged", {"tags": tags})
    await result_of(connection, identity)
    operations = Changes(connection)
    assert (await operations.get(identity) or {})["tags"] == {
        "customer": "acme",
        "order": "17",
        "paid": "true",
        "attempt": "2",
    }
    (found,) = await operations.list_events(Filter(tags={"order": ["17"], "customer": ["acme"]}))
    assert found["id"] == identity


async def test_the_last_progress_is_stored_before_a_wait_and_before_the_end(connection: Connection) -> None:
    identity = await enqueue(connection, "telling", {"last": "x" * 300})
    await suspended(connection, identity)
    operations = Changes(connection)
    assert (await operations.get(identity) or {})["progress"] == "199 of 200 files"
    await Queue(connection).signal(str(identity), "go")
    await result_of(connection, identity)
    ended = await operations.get(identity)
    assert ended is not None
    assert (ended["progress"], ended["tags"]) == ("x" * 199 + "…", {})
    assert [step["sort"] for step in ended["steps"]] == ["wait", "signal"]


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("a:b", "x", "the name of a tag has 1 to 40"),
        ("n" * 41, "x", "the name of a tag has 1 to 40"),
        ("name", "x" * 201, "the value of tag name has 1 to 200"),
        ("name", "", "the value of tag name has 1 to 200"),
        ("name", "two\nlines", "printable"),
        ("name", [1], "tag name is a list"),
    ],
)
async def test_a_tag_that_cannot_be_used_fails_the_attempt_and_says_why(
    connection: Connection, name: str, value: object, why: str
) -> None:
    identity = await enqueue(connection, "tagged", {"tags": {"good": "x", name: value}}, max_attempts=1)
    (error,) = json.loads((await ended(connection, identity))["errors"])
    assert error["type"] == "TagError"
    assert why in error["message"]
    assert (await Changes(connection).get(identity) or {})["tags"] == {}


@pytest.mark.parametrize(
    ("kind", "result"),
    [("sleep", {"claim": 2, "attempt": 1}), ("sleep-in-thread", 3), ("swallow", 2)],
)
async def test_sleep_ends_the_run_and_another_goes_on(
    connection: Connection, kind: str, result: object
) -> None:
    assert await result_of(connection, await enqueue(connection, kind)) == result


async def test_suspended_event_holds_no_claim_and_says_what_it_waits_for(connection: Connection) -> None:
    identity = await enqueue(connection, "wait")
    await suspended(connection, identity)
    row = await live(connection, identity)
    assert (row["claimed_by"], row["attempts"], row["retrying"]) == (None, 0, False)
    detail = await connection.fetchval("select detail from agent.why_waiting($1)", identity)
    assert detail == "waits for value"
    assert await Queue(connection).signal(str(identity), "other", 1) == "sent"
    assert (await live(connection, identity))["vt"] == row["vt"]
    assert await Queue(connection).signal(str(identity), "value", {"a": [1]}) == "sent"
    assert await result_of(connection, identity) == [{"a": [1]}]
    assert await Queue(connection).signal(str(identity), "value", 2) is None


async def test_values_that_come_first_are_taken_in_order(connection: Connection) -> None:
    identity = await enqueue(connection, "wait", {"times": 3, "timeout": "10ms"}, run_in=0.2)
    for value in (1, None):
        await Queue(connection).signal(str(identity), "value", value)
    assert await result_of(connection, identity) == [1, None, "nothing"]


async def test_step_beside_a_wait_is_finished_before_the_run_ends(
    connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    identity = await enqueue(connection, "branches", {"log": str(log)})
    await suspended(connection, identity)
    await Queue(connection).signal(str(identity), "value", 1)
    assert await result_of(connection, identity) == [1, "slow"]
    assert log.read_text().split() == ["slow"]


@pytest.mark.parametrize("blocking", [False, True])
async def test_thread_goes_on_unless_the_wait_blocks_it(connection: Connection, blocking: bool) -> None:
    first = await enqueue(connection, "sleep", {"pause": "1h", "blocking": blocking}, group_key="g")
    await suspended(connection, first)
    second = await enqueue(connection, "quick", group_key="g")
    if blocking:
        assert await connection.fetchval("select reason from agent.why_waiting($1)", second) == "group_waits"
    else:
        await ended(connection, second)
    assert (await live(connection, first))["retrying"] is blocking


async def said(log: Path, what: str) -> None:
    """Wait until a handler has noted something."""
    await until(lambda: log.exists() and what in log.read_text().splitlines(), what=what)


async def test_running_handler_is_cancelled_by_whom_and_why(connection: Connection, tmp_path: Path) -> None:
    log = tmp_path / "log"
    identity = await enqueue(connection, "hang", {"log": str(log)})
    await said(log, "began")
    queue = Queue(connection)
    assert await queue.cancel(str(identity), by="U1", reason="enough") == "running"
    row = await ended(connection, identity)
    assert (row["outcome"], row["reason"]) == ("cancelled", "cancelled while running by U1: enough")
    assert (row["cancelled_by"], row["attempts"]) == ("U1", 1)
    assert log.read_text().splitlines() == ["began", "cancelled True"]


async def test_running_handler_is_cancelled_without_notifications(database: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    connection = await asyncpg.connect(database)
    settings = {"SURELANE_HANDLERS": HANDLERS, "SURELANE_NOTIFICATIONS": "false"}
    async with worker(database, SURELANE_POLL_INTERVAL="100ms", **settings):
        identity = await enqueue(connection, "hang", {"log": str(log)})
        await said(log, "began")
        await Queue(connection).cancel(str(identity))
        assert (await ended(connection, identity))["outcome"] == "cancelled"
    await connection.close()


async def test_handler_that_completes_all_the_same_is_completed(
    connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    identity = await enqueue(connection, "hang", {"log": str(log), "ignore": True})
    await said(log, "began")
    await Queue(connection).cancel(str(identity))
    assert await result_of(connection, identity) == "done all the same"


async def test_waiting_member_of_a_group_is_cancelled_and_its_head_goes_on(
    connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with connection.transaction():
        first, second = [
            await enqueue(connection, "hang", {"log": str(log)}, group_key="cancelled") for _ in range(2)
        ]
    await said(log, "began")
    queue = Queue(connection)
    assert await queue.cancel(str(second)) == "running"
    assert (await ended(connection, second))["outcome"] == "cancelled"
    assert (await live(connection, first))["claimed_by"]
    await queue.cancel(str(first))
    assert (await ended(connection, first))["reason"] == "cancelled while running"
    assert log.read_text().splitlines() == ["began", "cancelled True"]


async def test_suspended_event_is_cancelled_at_once(connection: Connection) -> None:
    identity = await enqueue(connection, "wait")
    await suspended(connection, identity)
    assert await Queue(connection).cancel(str(identity), reason="enough") == "cancelled"
    row = await ended(connection, identity)
    assert row["reason"] == f"cancelled by {await connection.fetchval('select session_user')}: enough"


async def test_worker_that_hangs_is_fenced(database: str, tmp_path: Path) -> None:
    connection = await asyncpg.connect(database)
    await connection.execute(
        "create or replace function agent.cancel_grace() returns interval language sql return interval '300 ms'"
    )
    log = tmp_path / "log"
    async with worker(database, SURELANE_HANDLERS=HANDLERS):
        identity = await enqueue(connection, "block", {"log": str(log), "seconds": 1})
        await said(log, "began")
        await Queue(connection).cancel(str(identity))
        row = await ended(connection, identity)
        assert (row["outcome"], row["reason"]) == ("cancelled", "cancelled while running")
    await connection.close()


async def test_timeline_tells_the_steps(connection: Connection, tmp_path: Path) -> None:
    calls = [["a", "1"], ["a", "2"]]
    payload = {"log": str(tmp_path / "log"), "runs": 1, "run1": calls}
    identity = await enqueue(connection, "steps", payload)
    await ended(connection, identity)
    waited = await enqueue(connection, "wait", {"timeout": "20ms"})
    await ended(connection, waited)
    job, other = [await Changes(connection).get(each) for each in (identity, waited)]
    assert job is not None
    assert other is not None
    story = [(step.what, (step.detail or "").split(":")[0]) for step in story_of(job)]
    assert [what for what in story if what[0] == "step"] == [("step", "a"), ("step", "a (2)")]
    assert {"waits", "waited"} <= {step.what for step in story_of(other)}


async def test_steps_leave_with_retention(connection: Connection, tmp_path: Path) -> None:
    # Old enough for its chunk of history to end before the cutoff.
    payload = {"log": str(tmp_path / "log"), "runs": 1, "run1": [["a", "1"]]}
    gone = await connection.fetchval(
        "insert into agent.event (event_ts, kind, event) values (agent.clock() - interval '30 days', 'steps', $1)"
        " returning id",
        json.dumps(payload),
    )
    kept = await enqueue(connection, "wait")
    await ended(connection, gone)
    await suspended(connection, kept)
    await Queue(connection).signal(str(kept), "other")
    while await connection.fetchval("select next from agent.drop_history('20 days')") is not None:
        pass
    assert await connection.fetchval("select agent.list_steps($1)", gone) == "[]"
    assert len(json.loads(await connection.fetchval("select agent.list_steps($1)", kept))) == 2
    await Queue(connection).cancel(str(kept))


async def test_event_that_runs_again_goes_on_after_its_stored_steps_unless_it_completed(
    connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    call = [["a", "1"]]
    payload = {"log": str(log), "runs": 2, "run1": call, "run2": call, "run3": call}
    identity = await enqueue(connection, "steps", payload, max_attempts=1)
    assert (await ended(connection, identity))["outcome"] == "failed"
    for calls in (1, 2):
        await connection.execute("select agent.rerun_events($1)", [identity])
        assert await result_of(connection, identity) == ["1"]
        assert log.read_text().split() == ["1"] * calls


async def test_new_run_keeps_the_steps_before_the_named_one_and_runs_the_others(
    connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    payload = {"log": str(log), "runs": 1, "run1": [["a", "1"], ["b", "2"], ["c", "3"]]}
    identity = await enqueue(connection, "steps", payload)
    await ended(connection, identity)
    new = await Changes(connection).rerun_as_new(identity, from_step="b")
    assert new.id is not None
    assert await result_of(connection, new.id) == ["1", "2", "3"]
    assert (new.steps, log.read_text().split()) == (["a"], ["1", "2", "3", "2", "3"])
    job, old = [await Changes(connection).get(each) for each in (new.id, identity)]
    assert job is not None
    assert old is not None
    assert (job["rerun_of"], old["rerun_as"]) == (identity, [new.id])
    story = [(step.what, (step.detail or "").split(":")[0]) for step in story_of(job)]
    steps = [("step (kept)", "a"), ("step", "b"), ("step", "c")]
    assert [told for told in story if told[0].startswith("step")] == steps
    assert ("runs again", f"event {identity}, from step b, steps kept") in story
    other = await Changes(connection).rerun_as_new(
        identity, from_step="c", payload=payload | {"run1": [["a", "9"]]}
    )
    assert other.id is not None
    row = await ended(connection, other.id)
    assert json.loads(row["errors"])[0]["type"] == "StepMismatchError"


@pytest.mark.parametrize(
    ("kind", "why"),
    [("together", "register this handler with on"), ("nested", "step 'outer' contains another step or wait")],
)
async def test_step_in_a_place_without_steps_is_refused(connection: Connection, kind: str, why: str) -> None:
    row = await ended(connection, await enqueue(connection, kind, max_attempts=1))
    (error,) = json.loads(row["errors"])
    assert error["type"] == "StepMismatchError"
    assert why in error["message"]


async def test_results_come_again_in_the_order_in_which_they_were_stored(connection: Connection) -> None:
    ends = list("hgfedcba")
    identity = await enqueue(connection, "overtaking", {"ends": ends})
    assert await result_of(connection, identity) == ends
