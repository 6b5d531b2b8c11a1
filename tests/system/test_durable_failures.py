"""Durable handlers: failures that were caught, several waits at once, attempts and names."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from surelane.queue import Queue
from surelane_operator.changes import Changes
from surelane_operator.reads.timeline import story_of
from tests.processes import Service, until
from tests.system.test_durable import result_of, suspended
from tests.system.worker import ended, enqueue, live, worker

pytestmark = pytest.mark.usefixtures("running")
HANDLERS = "tests.system.failing_handlers:handlers"


@pytest.fixture(scope="module")
async def running(shared_database: str) -> AsyncIterator[Service]:
    async with worker(shared_database, SURELANE_HANDLERS=HANDLERS, SURELANE_CONCURRENCY="8") as started:
        yield started


@pytest.fixture(scope="module")
async def connection(shared_database: str) -> AsyncIterator[Connection]:
    connected = await asyncpg.connect(shared_database)
    yield connected
    await connected.close()


async def lives(
    database: str, identity: int, connection: Connection, handlers: str = HANDLERS
) -> tuple[asyncpg.Record, int]:
    """Start workers, one after another has died, until an event ends. Return its row and the deaths."""
    deaths = 0
    while True:
        async with worker(
            database, ready="", SURELANE_HANDLERS=handlers, SURELANE_WORKER_NAME="mortal"
        ) as running:
            end = asyncio.create_task(ended(connection, identity, within=120))
            died = asyncio.create_task(running.child.wait())
            await asyncio.wait([end, died], return_when="FIRST_COMPLETED")
            if end.done():
                died.cancel()
                return end.result(), deaths
            end.cancel()
            with suppress(asyncio.CancelledError):
                await end
            assert running.child.exit_code == -signal.SIGKILL, running.output
            deaths += 1


def lines(log: Path, what: str) -> int:
    return log.read_text().splitlines().count(what)


# --- Failures that the handler caught


async def test_failure_past_which_a_handler_went_on_is_raised_again_and_not_tried_again(
    connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    identity = await enqueue(connection, "buy", {"log": str(log), "how": "wait"})
    await suspended(connection, identity)
    await Queue(connection).signal(str(identity), "answer", "Give up")
    told = {
        "type": "PaymentError",
        "message": "card declined",
        "where": True,
        "cause": "NoneType",
        "text": "step pay failed: PaymentError: card declined",
        "answer": "Give up",
    }
    assert await result_of(connection, identity) == told
    assert log.read_text().split() == ["charged", "caught", "caught"]
    job = await Changes(connection).get(identity)
    assert job is not None
    assert [step["failed"] for step in job["steps"] if step["name"] == "pay"] == [True]
    story = [(step.what, (step.detail or "").split(":")[0]) for step in story_of(job)]
    assert ("step failed for good", "pay") in story


async def test_first_run_raises_the_same_error_as_later_ones(connection: Connection, tmp_path: Path) -> None:
    identity = await enqueue(connection, "buy", {"log": str(tmp_path / "log"), "how": "end"})
    result = await result_of(connection, identity)
    assert (result["type"], result["cause"]) == ("PaymentError", "PaymentError")
    assert result["text"] == "step pay failed: PaymentError: card declined"


async def test_failure_that_was_compensated_is_final_although_the_worker_is_killed(
    database: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    connection = await asyncpg.connect(database)
    identity = await enqueue(connection, "buy", {"log": str(log), "how": "crash"})
    row, deaths = await lives(database, identity, connection)
    await connection.close()
    assert (row["outcome"], deaths) == ("completed", 1)
    assert (lines(log, "charged"), lines(log, "compensated"), lines(log, "caught")) == (1, 1, 2)


async def test_failure_that_ends_the_attempt_is_tried_again(connection: Connection, tmp_path: Path) -> None:
    log = tmp_path / "log"
    identity = await enqueue(connection, "buy", {"log": str(log), "how": "fail"})
    assert await result_of(connection, identity) == "Bought."
    row = await ended(connection, identity)
    (error,) = json.loads(row["errors"])
    assert (error["type"], error["message"]) == ("PaymentError", "card declined")
    assert log.read_text().split() == ["charged", "caught", "charged"]


async def test_failure_beside_other_steps_is_a_result_in_each_run(
    connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    identity = await enqueue(connection, "buy-two", {"log": str(log)})
    await suspended(connection, identity)
    await Queue(connection).signal(str(identity), "answer", 1)
    assert await result_of(connection, identity) == ["PaymentError", "other", 1]
    assert sorted(log.read_text().split()) == ["charged", "other"]


async def test_failure_that_ends_the_attempt_beside_other_steps_is_tried_again(
    connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    identity = await enqueue(connection, "buy-beside", {"log": str(log)})
    assert await result_of(connection, identity) == "receipt"
    assert lines(log, "charged") == 2


async def test_rerun_keeps_a_final_failure_before_the_named_step(
    connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    # The value is there before the wait, so the first run takes it.
    identity = await enqueue(connection, "buy", {"log": str(log), "how": "wait"}, run_in=0.2)
    await Queue(connection).signal(str(identity), "answer", "Give up")
    await ended(connection, identity)
    rerun = await Changes(connection).rerun_as_new(identity, from_step="answer")
    assert rerun.id is not None
    await Queue(connection).signal(str(rerun.id), "answer", "Stop")
    assert (await result_of(connection, rerun.id))["answer"] == "Stop"
    assert lines(log, "charged") == 1
    again = await Changes(connection).rerun_as_new(identity, from_step="pay")
    assert again.id is not None
    assert await result_of(connection, again.id) == "Bought."
    assert lines(log, "charged") == 2


async def test_failed_step_of_the_release_before_is_tried_again(
    connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.write_text("charged\n")
    identity = await enqueue(connection, "buy", {"log": str(log), "how": "wait"}, run_in=3600)
    await connection.execute(
        "insert into agent.step (event_id, name, nth, sort, event_ts, errors, attempt, started_at)"
        " values ($1, 'pay', 1, 'step', now(), $2, 1, now())",
        identity,
        json.dumps([{"type": "PaymentError", "message": "card declined", "at": "2026-01-01", "attempt": 1}]),
    )
    await connection.execute(
        "update agent.event set claimed = array[now()], vt = now() where id = $1", identity
    )
    await connection.execute("notify agent_event")
    assert await result_of(connection, identity) == "Bought."


# --- Several waits at once


@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize("how", ["gather", "exceptions", "group", "wait"])
async def test_several_waits_at_once_need_all_answers_in_any_order(
    connection: Connection, tmp_path: Path, how: str, order: str
) -> None:
    log = tmp_path / "log"
    identity = await enqueue(connection, "both", {"log": str(log), "how": how})
    for name in order:
        await suspended(connection, identity)
        detail = await connection.fetchval("select detail from agent.why_waiting($1)", identity)
        assert all(f"waits for {each}" in detail for each in order[order.index(name) :])
        assert not log.exists() or lines(log, "deployed") == 0
        await Queue(connection).signal(str(identity), name, name.upper())
        if name == order[0]:
            await taken(connection, identity, name)
    assert await result_of(connection, identity) == ["A", "B"]
    assert lines(log, "deployed") == 1


async def taken(connection: Connection, identity: int, name: str) -> None:
    """Wait until a wait has taken its value."""
    by = None
    async with asyncio.timeout(60):
        while by is None:
            by = await connection.fetchval(
                "select taken_by from agent.signal where event_id = $1 and name = $2", identity, name
            )
            await asyncio.sleep(0.01)


async def test_nothing_of_a_suspended_handler_goes_on(connection: Connection, tmp_path: Path) -> None:
    log = tmp_path / "log"
    identity = await enqueue(connection, "catch-all", {"log": str(log)})
    await suspended(connection, identity)
    assert not log.exists()
    await Queue(connection).signal(str(identity), "answer", 1)
    assert await result_of(connection, identity) == 2
    assert log.read_text().split() == ["answered"]
    assert not await connection.fetchval("select count(*) from agent.job where kind = 'quick'")


async def test_first_of_several_is_the_same_in_each_run(database: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    connection = await asyncpg.connect(database)
    identity = await enqueue(connection, "first", {"log": str(log)})
    queue = Queue(connection)
    for name in ("b", "a"):
        await queue.signal(str(identity), name, name)
    row, deaths = await lives(database, identity, connection)
    await connection.close()
    winners = [line for line in log.read_text().splitlines() if line.startswith("winner")]
    assert (row["outcome"], deaths, len(winners)) == ("completed", 1, 2)
    assert winners[0] == winners[1]
    assert len(json.loads(row["result"])) == 1


async def test_escalation_stays_one_although_the_answer_came_meanwhile(database: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    connection = await asyncpg.connect(database)
    identity = await enqueue(connection, "escalate", {"log": str(log)})
    async with worker(
        database, ready="", SURELANE_HANDLERS=HANDLERS, SURELANE_WORKER_NAME="mortal"
    ) as running:
        await running.child.wait()
    await Queue(connection).signal(str(identity), "answer", "late")
    row, _ = await lives(database, identity, connection)
    await connection.close()
    assert json.loads(row["result"]) == ["escalated", "late"]
    assert lines(log, "escalated") == 1


# --- Attempts


async def test_attempt_that_stored_a_step_does_not_count(database: str, tmp_path: Path) -> None:
    connection = await asyncpg.connect(database)
    identity = await enqueue(
        connection, "slow-progress", {"log": str(tmp_path / "log"), "steps": 5}, max_attempts=3
    )
    row, deaths = await lives(database, identity, connection)
    await connection.close()
    assert (row["outcome"], deaths) == ("completed", 5)


async def test_poison_after_progress_ends_after_its_attempts(database: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    connection = await asyncpg.connect(database)
    payload = {"log": str(log), "steps": 5, "poison": 2}
    identity = await enqueue(connection, "slow-progress", payload, max_attempts=3)
    row, _ = await lives(database, identity, connection)
    await connection.close()
    assert (row["outcome"], row["reason"]) == ("expired", "attempts_exhausted")
    # The attempt that stored the second step counts as the first.
    assert lines(log, "poisoned") == 2


async def test_handler_has_attempts_and_pauses_of_its_own(connection: Connection) -> None:
    row = await ended(connection, await enqueue(connection, "fails-often"))
    messages = [error["message"] for error in json.loads(row["errors"])]
    assert (row["outcome"], messages) == ("failed", [f"attempt {number}" for number in range(1, 6)])


async def test_a_handlers_maximum_holds_from_the_first_claim_on(database: str) -> None:
    """No worker has announced it yet, and this one's announcement fails."""
    queue = await asyncpg.connect(database)
    announced = "agent.announce_worker(text, text[], text, interval, int4, jsonb)"
    await queue.execute(f"alter function {announced} rename to announced_away")
    some = [await enqueue(queue, "fails-once") for _ in range(40)]
    async with worker(database, ready="", SURELANE_HANDLERS=HANDLERS):
        rows = [await ended(queue, identity) for identity in some]
    await queue.close()
    assert {(row["outcome"], len(json.loads(row["errors"]))) for row in rows} == {("failed", 1)}


def called_again(log: Path, tries: int) -> bool:
    return lines(log, "called") > tries


async def test_pause_between_tries_of_a_step_holds_no_slot_and_costs_no_attempt(
    connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    payload = {"log": str(log), "fails": 2, "backoff": "1h"}
    identity = await enqueue(connection, "retrying", payload)
    for tries in (1, 2):
        await suspended(connection, identity)
        row = await live(connection, identity)
        assert (row["claimed_by"], row["attempts"], lines(log, "called")) == (None, 0, tries)
        detail = await connection.fetchval("select detail from agent.why_waiting($1)", identity)
        assert detail.startswith("tries step call again until ")
        await connection.execute("update agent.step set due_at = now() where event_id = $1", identity)
        await connection.execute("update agent.event set vt = now() where id = $1", identity)
        await connection.execute("notify agent_event")
        await until(partial(called_again, log, tries), what="another try")
    assert await result_of(connection, identity) == [3, 1]


# --- Names


async def test_steps_of_one_name_at_once_are_refused_without_keys(
    connection: Connection, tmp_path: Path
) -> None:
    identity = await enqueue(
        connection, "side-by-side", {"log": str(tmp_path / "log"), "keys": False}, max_attempts=1
    )
    (error,) = json.loads((await ended(connection, identity))["errors"])
    assert error["type"] == "StepMismatchError"
    assert "two tasks run a step 'fetch' at once" in error["message"]


async def test_keys_give_each_task_its_own_result(connection: Connection, tmp_path: Path) -> None:
    log = tmp_path / "log"
    identity = await enqueue(connection, "side-by-side", {"log": str(log), "keys": True})
    assert await result_of(connection, identity) == {each: f"result of {each}" for each in "abc"}
    assert sorted(log.read_text().splitlines()) == [f"fetched {each}" for each in "abc"]
    steps: list[Any] = json.loads(await connection.fetchval("select agent.list_steps($1)", identity))
    assert sorted(step["name"] for step in steps) == ["fetch [a]", "fetch [b]", "fetch [c]"]
