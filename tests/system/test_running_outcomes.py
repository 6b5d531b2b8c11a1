"""Events end with the right outcomes in a real worker on a real database."""

import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from surelane import Queue
from surelane.calls import Connection
from tests.processes import Service, until
from tests.system import worker_handlers
from tests.system.worker import ended, enqueue, metrics, worker
from tests.system.worker_handlers import Typed

pytestmark = pytest.mark.usefixtures("running")


@pytest.fixture(scope="module")
async def running(shared_database: str) -> AsyncIterator[Service]:
    async with worker(shared_database) as started:
        yield started


@pytest.fixture
def database(shared_database: str) -> str:
    return shared_database


async def test_result_is_kept_in_history(connection: Connection) -> None:
    row = await ended(connection, await enqueue(connection, "echo", {"text": "hé"}))
    assert (row["outcome"], json.loads(row["result"]), row["attempts"]) == ("completed", {"text": "hé"}, 1)


async def test_exception_is_retried_until_it_works(connection: Connection) -> None:
    row = await ended(connection, await enqueue(connection, "raise-once"))
    assert (row["outcome"], json.loads(row["result"]), row["attempts"]) == ("completed", "the second time", 2)
    (error,) = json.loads(row["errors"])
    assert (error["type"], error["message"], error["attempt"]) == ("RuntimeError", "the first time", 1)
    assert error["worker"]
    assert "worker_handlers.py" in error["where"]


async def test_exception_fails_the_event_after_three_attempts(connection: Connection) -> None:
    row = await ended(connection, await enqueue(connection, "raise"))
    assert (row["outcome"], row["reason"], row["attempts"]) == ("failed", "attempts_exhausted", 3)
    assert [error["attempt"] for error in json.loads(row["errors"])] == [1, 2, 3]


async def test_events_own_maximum_wins(connection: Connection) -> None:
    row = await ended(connection, await enqueue(connection, "raise", max_attempts=1))
    assert (row["outcome"], row["attempts"]) == ("failed", 1)


async def test_error_with_nul_and_surrogates_is_stored(connection: Connection) -> None:
    row = await ended(connection, await enqueue(connection, "raise-unstorable", max_attempts=1))
    (error,) = json.loads(row["errors"])
    assert error["message"] == "a\ufffdb\ufffd"


async def test_discard_ends_the_event_with_its_reason(connection: Connection) -> None:
    row = await ended(connection, await enqueue(connection, "outcome", {"outcome": "discard"}))
    assert (row["outcome"], row["reason"], row["attempts"]) == ("failed", "unwanted", 1)


async def test_retry_counts_the_attempt(connection: Connection) -> None:
    row = await ended(connection, await enqueue(connection, "outcome", {"outcome": "retry"}))
    assert (row["outcome"], json.loads(row["result"])) == ("completed", {"attempt": 2, "claim": 2})
    assert json.loads(row["errors"])[0]["message"] == "not yet"


async def test_snooze_does_not_count_the_attempt(connection: Connection) -> None:
    row = await ended(connection, await enqueue(connection, "outcome", {"outcome": "snooze"}))
    assert (row["outcome"], json.loads(row["result"])) == ("completed", {"attempt": 1, "claim": 2})


async def test_result_that_json_cannot_hold_is_not_tried_again(connection: Connection) -> None:
    row = await ended(connection, await enqueue(connection, "outcome", {"outcome": "unjsonable"}))
    assert (row["outcome"], row["reason"], row["attempts"]) == ("failed", "result_refused", 1)


async def test_result_that_jsonb_cannot_hold_is_mended(connection: Connection) -> None:
    row = await ended(connection, await enqueue(connection, "outcome", {"outcome": "nul"}))
    assert (row["outcome"], json.loads(row["result"])) == ("completed", {"text": "a\ufffdb\ufffd"})


async def test_payload_that_does_not_fit_fails_once_and_names_the_field(
    connection: Connection, running: Service
) -> None:
    at = datetime(2030, 1, 2, tzinfo=UTC)
    queue = Queue(connection)
    fits = await queue.enqueue("typed", Typed(at=at, numbers={"one": 1}))
    row = await ended(connection, fits)
    assert (row["outcome"], json.loads(row["result"])) == ("completed", [at.isoformat(), {"one": 1}])
    row = await ended(connection, await queue.enqueue("typed", {"at": "marked", "numbers": {"n": "marked"}}))
    assert (row["outcome"], row["reason"], row["attempts"]) == ("failed", "invalid_payload", 1)
    (error,) = json.loads(row["errors"])
    assert (error["type"], "numbers.n: Input should be" in error["message"]) == ("InvalidPayloadError", True)
    assert "marked" not in row["errors"]
    await until(lambda: any("InvalidPayloadError" in line for line in running.output), what="its log line")
    assert not any("marked" in line for line in running.output)


async def test_timeout_fails_the_attempt(connection: Connection) -> None:
    row = await ended(connection, await enqueue(connection, "too-slow", max_attempts=1))
    (error,) = json.loads(row["errors"])
    assert error["type"] == "HandlerTimeoutError"
    assert _line(error["where"]) == "    await asyncio.sleep(60)\n"
    assert "in too_slow" in error["traceback"]


async def test_timeout_names_the_line_of_a_synchronous_handler(connection: Connection) -> None:
    row = await ended(connection, await enqueue(connection, "overdue", max_attempts=1))
    (error,) = json.loads(row["errors"])
    assert error["type"] == "HandlerTimeoutError"
    assert error["where"].rpartition(":")[0] == worker_handlers.__file__


async def test_swapped_arguments_of_reply_are_said(connection: Connection) -> None:
    row = await ended(connection, await enqueue(connection, "swapped", max_attempts=1))
    (error,) = json.loads(row["errors"])
    assert (error["type"], "reply(event, text)" in error["message"]) == ("TypeError", True)


async def test_handler_that_blocks_the_event_loop_is_named(running: Service, connection: Connection) -> None:
    identity = await enqueue(connection, "block-the-loop")
    await ended(connection, identity)

    def said(event: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in running.output if f'"event": "{event}"' in line]

    await until(lambda: bool(said("the event loop goes on")), what="the end of the blockage")
    (named,), (over,) = said("a handler blocks the event loop"), said("the event loop goes on")
    assert (named["level"], named["kind"]) == ("warning", "block-the-loop")
    assert named["where"].rpartition(":")[0] == worker_handlers.__file__
    assert "in block_the_loop" in named["stack"]
    assert over["seconds"] >= 0.5
    counted = re.search(
        r"^surelane_loop_blocked_seconds_total.* ([0-9.e+]+)$", await metrics(running), re.MULTILINE
    )
    assert counted is not None
    assert float(counted[1]) >= 0.5
    noted = await connection.fetchval(
        "select string_agg(s::text, ' ') from agent.step as s where event_id = $1", identity
    )
    assert "blocked the event loop" in noted


def _line(place: str) -> str:
    path, _, number = place.rpartition(":")
    return Path(path).read_text().splitlines(keepends=True)[int(number) - 1]


async def test_synchronous_handlers_run_beside_each_other(connection: Connection) -> None:
    async with connection.transaction():
        identities = [await enqueue(connection, "sleep-in-a-thread", {"seconds": 1}) for _ in range(4)]
    results = [json.loads((await ended(connection, identity))["result"]) for identity in identities]
    assert max(result["began"] for result in results) < min(result["ended"] for result in results)
    assert all(result["replied_from_a_thread"] for result in results)


@pytest.mark.parametrize(("kind", "jobs"), [("overdue", 2), ("overdue-step", 1)])
async def test_synchronous_code_is_not_tried_again_while_its_thread_lives(
    running: Service, connection: Connection, kind: str, jobs: int
) -> None:
    """Nor does its slot come free. The thread is told that its time is over."""
    before = len(running.output)
    identities = [await enqueue(connection, kind, max_attempts=2) for _ in range(jobs)]
    assert {(await ended(connection, identity))["outcome"] for identity in identities} == {"failed"}
    lines = [json.loads(line) for line in running.output[before:] if f'"event": "{kind} thread ends"' in line]
    assert [(line["most"], line["told"]) for line in lines] == [(1, True)] * 4


async def test_handler_that_exits_fails_its_attempt_only(connection: Connection) -> None:
    row = await ended(connection, await enqueue(connection, "exit", max_attempts=1))
    assert json.loads(row["errors"])[0]["type"] == "SystemExit"
    assert (await ended(connection, await enqueue(connection, "echo")))["outcome"] == "completed"


async def test_kind_that_nobody_handles_is_left_alone(connection: Connection) -> None:
    unhandled = await enqueue(connection, "unheard-of")
    await ended(connection, await enqueue(connection, "echo"))
    row = await connection.fetchrow("select attempts, claimed_by from agent.event where id = $1", unhandled)
    assert row is not None
    assert tuple(row) == (0, None)


async def test_handlers_bound_holds(connection: Connection) -> None:
    identities = [await enqueue(connection, "one-at-a-time") for _ in range(6)]
    results = [json.loads((await ended(connection, identity))["result"]) for identity in identities]
    spans = sorted((result["began"], result["ended"]) for result in results)
    assert all(ends <= begins for (_, ends), (begins, _) in pairwise(spans))


async def test_bounded_handler_does_not_hold_back_the_others(connection: Connection) -> None:
    """The slow ones would take a minute. The test deletes those that are left."""
    enqueued = await connection.fetch(
        "select agent.enqueue('one-at-a-time') as id from generate_series(1, 1000)"
    )
    slow = [row["id"] for row in enqueued]
    quick = [await enqueue(connection, "echo") for _ in range(40)]
    for identity in quick:
        await ended(connection, identity)
    waiting = await connection.fetchval("select count(*) from agent.event where id = any($1)", slow)
    assert waiting > 0
    await connection.execute("delete from agent.event where kind = 'one-at-a-time'")


async def test_group_form_gets_the_groups_events_at_once_in_order(connection: Connection) -> None:
    async with connection.transaction():
        identities = [await enqueue(connection, "together", {"n": n}, group_key="T:C:1") for n in range(5)]
    rows = [await ended(connection, identity) for identity in identities]
    assert [json.loads(row["result"]) for row in rows] == [[0, 1, 2, 3, 4]] * 5


async def test_events_of_a_group_run_one_after_another(database: str, connection: Connection) -> None:
    async with connection.transaction():
        identities = [await enqueue(connection, "ordered", {"n": n}, group_key="T:C:2") for n in range(20)]
    async with worker(database):
        ran = [json.loads((await ended(connection, identity))["result"]) for identity in identities]
    assert ran == sorted(ran)


async def test_retry_holds_back_the_rest_of_its_group(connection: Connection) -> None:
    async with connection.transaction():
        first = await enqueue(connection, "ordered", {"bad": True}, group_key="T:C:3")
        rest = [await enqueue(connection, "ordered", group_key="T:C:3") for _ in range(3)]
    rows = [await ended(connection, identity) for identity in [first, *rest]]
    ran = [json.loads(row["result"]) for row in rows]
    assert ran == sorted(ran)
    assert [row["attempts"] for row in rows] == [2, 1, 1, 1]
