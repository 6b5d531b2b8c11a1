"""What a real worker does beside threads: of synchronous handlers, and of its event loop when a handler blocks it."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from surelane.calls import Connection
from tests.processes import Service, until
from tests.system import worker_handlers
from tests.system.worker import ended, enqueue, metrics, worker

pytestmark = pytest.mark.usefixtures("running")


@pytest.fixture(scope="module")
async def running(shared_database: str) -> AsyncIterator[Service]:
    async with worker(shared_database) as started:
        yield started


@pytest.fixture
def database(shared_database: str) -> str:
    return shared_database


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
    """Nor does its slot come free. The thread is told that its time is over, and history names its line."""
    before = len(running.output)
    identities = [await enqueue(connection, kind, max_attempts=2) for _ in range(jobs)]
    rows = [await ended(connection, identity) for identity in identities]
    assert {row["outcome"] for row in rows} == {"failed"}
    if kind == "overdue":
        error = json.loads(rows[0]["errors"])[-1]
        assert error["type"] == "HandlerTimeoutError"
        assert error["where"].rpartition(":")[0] == worker_handlers.__file__
    lines = [json.loads(line) for line in running.output[before:] if f'"event": "{kind} thread ends"' in line]
    assert [(line["most"], line["told"]) for line in lines] == [(1, True)] * 4
