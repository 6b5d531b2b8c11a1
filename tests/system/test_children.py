"""Handlers start children and wait for their results."""

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
from tests.databases import Server
from tests.processes import Service
from tests.system.test_durable import result_of, suspended
from tests.system.test_encryption import ON, place, stored
from tests.system.worker import ended, enqueue, live, worker

pytestmark = pytest.mark.usefixtures("running")
HANDLERS = "tests.system.child_handlers:handlers"
CHILDREN = "select * from agent.job where continuation_id = $1 order by id"


@pytest.fixture(scope="module")
async def running(shared_database: str) -> AsyncIterator[Service]:
    settings = {"SURELANE_CONCURRENCY": "8", "SURELANE_SWEEP_INTERVAL": "100ms"}
    async with worker(shared_database, SURELANE_HANDLERS=HANDLERS, **settings) as started:
        yield started


@pytest.fixture(scope="module")
async def connection(shared_database: str) -> AsyncIterator[Connection]:
    connected = await asyncpg.connect(shared_database)
    yield connected
    await connected.close()


async def child_of(connection: Connection, identity: int) -> Any:
    """Wait until an event has a suspended child; return it."""
    async with asyncio.timeout(60):
        while True:
            child = await connection.fetchrow(CHILDREN, identity)
            if child is not None:
                await suspended(connection, child["id"])
                return child
            await asyncio.sleep(0.01)


async def living(connection: Connection, identity: int, children: int) -> None:
    """Wait until an event has so many live children."""
    async with asyncio.timeout(60):
        while True:
            found = await connection.fetch(CHILDREN, identity)
            if sum(child["finished_at"] is None for child in found) == children:
                return
            await asyncio.sleep(0.01)


async def test_result_of_a_child_comes_back(connection: Connection) -> None:
    identity = await enqueue(connection, "parent", {"parts": [{"n": {"deep": [1, "é"]}}]})
    assert await result_of(connection, identity) == [{"deep": [1, "é"]}]
    (child,) = await connection.fetch(CHILDREN, identity)
    assert (child["kind"], child["item_key"], child["status"]) == ("part", f"{identity}:part:1", "completed")
    tree = json.loads(await connection.fetchval("select agent.workflow($1)", identity))
    assert tree["children"] == {"completed": 1}


async def test_result_that_is_large_comes_back(connection: Connection) -> None:
    identity = await enqueue(connection, "parent", {"parts": [{"n": "x" * 999_990}]})
    assert await result_of(connection, identity) == ["x" * 999_990]


async def test_synchronous_handler_runs_a_child(connection: Connection) -> None:
    assert await result_of(connection, await enqueue(connection, "sync-parent")) == 3


async def test_options_reach_the_child(connection: Connection) -> None:
    payload = {"parts": [{"n": 1}], "how": {"key": "a", "priority": 0, "max_attempts": 2}}
    identity = await enqueue(connection, "parent", payload)
    await result_of(connection, identity)
    (child,) = await connection.fetch(CHILDREN, identity)
    assert child["item_key"] == f"{identity}:part [a]:1"
    assert (child["priority"], child["max_attempts"]) == (0, 2)


async def test_child_that_fails_raises(connection: Connection) -> None:
    payload = {"parts": [{"fails": "no such thing"}], "how": {"max_attempts": 2}}
    identity = await enqueue(connection, "parent", payload)
    failed = ["part", f"{identity}:part:1", "failed", "attempts_exhausted", "no such thing"]
    assert await result_of(connection, identity) == failed


async def test_failure_that_is_not_caught_fails_the_parent(connection: Connection) -> None:
    payload = {"parts": [{"fails": "no"}], "raises": True, "how": {"max_attempts": 1}}
    row = await ended(connection, await enqueue(connection, "parent", payload, max_attempts=2))
    error = json.loads(row["errors"])[-1]
    assert (row["outcome"], error["type"]) == ("failed", "ChildError")
    assert "no" in error["message"]


async def test_child_that_expires_raises(connection: Connection) -> None:
    identity = await enqueue(connection, "parent", {"parts": [{"waits": True}]})
    child = await child_of(connection, identity)
    await suspended(connection, identity)
    await connection.execute("update agent.event set deadline = agent.clock() where id = $1", child["id"])
    outcome = await result_of(connection, identity)
    assert outcome[2] == "expired"


async def test_child_that_is_cancelled_raises(connection: Connection) -> None:
    identity = await enqueue(connection, "parent", {"parts": [{"waits": True}]})
    child = await child_of(connection, identity)
    assert await Queue(connection).cancel(child["item_key"], by="ada", reason="enough") == "cancelled"
    outcome = await result_of(connection, identity)
    assert outcome[2:] == ["cancelled", "cancelled by ada: enough", "cancelled by ada: enough"]


async def test_cancelling_a_parent_cancels_its_live_children(connection: Connection) -> None:
    identity = await enqueue(connection, "grandparent", {"parts": [{"waits": True}]})
    child = await child_of(connection, identity)
    grandchild = await child_of(connection, child["id"])
    assert await Queue(connection).cancel(str(identity), by="ada", reason="enough") == "cancelled"
    for event in (identity, child["id"], grandchild["id"]):
        assert (await ended(connection, event))["outcome"] == "cancelled"


async def test_parent_that_runs_again_after_a_cancel_starts_its_child_anew(connection: Connection) -> None:
    identity = await enqueue(connection, "parent", {"parts": [{"waits": True, "n": 5}]})
    child = await child_of(connection, identity)
    await suspended(connection, identity)
    await Queue(connection).cancel(str(identity), by="ada", reason="enough")
    await ended(connection, child["id"])
    await connection.execute("select agent.rerun_events(array[$1::int8])", identity)
    await living(connection, identity, 1)
    await Queue(connection).signal(child["item_key"], "go", None)
    assert await result_of(connection, identity) == [5]


async def test_failed_parent_that_runs_again_runs_its_failed_child_again(
    connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    parts = [{"n": 1, "log": str(log)}, {"n": 2, "log": str(log), "fails": "no"}]
    payload = {"parts": parts, "raises": True, "how": {"max_attempts": 1}}
    identity = await enqueue(connection, "parent", payload, max_attempts=1)
    assert (await ended(connection, identity))["outcome"] == "failed"
    await living(connection, identity, 0)
    await connection.execute("select agent.rerun_events(array[$1::int8])", identity)
    assert (await ended(connection, identity))["outcome"] == "failed"
    assert sorted(log.read_text().splitlines()) == ["ran part 1", "ran part 2", "ran part 2"]


async def test_new_event_for_an_ended_parent_runs_children_of_its_own(
    connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    payload = {"parts": [{"n": 1, "log": str(log)}, {"n": 2, "log": str(log)}]}
    identity = await enqueue(connection, "sequence", payload)
    await result_of(connection, identity)
    again = "select rerun from agent.rerun_as_new($1, $2, null)"
    kept = await connection.fetchval(again, identity, "child part:2")
    assert await result_of(connection, kept) == [1, 2]
    assert sorted(log.read_text().splitlines()) == ["ran part 1", "ran part 2", "ran part 2"]


async def test_parent_that_ends_leaves_its_child_alone(connection: Connection) -> None:
    identity = await enqueue(connection, "leaving")
    assert await result_of(connection, identity) is False
    child = await child_of(connection, identity)
    await Queue(connection).signal(child["item_key"], "go", None)
    assert (await ended(connection, child["id"]))["outcome"] == "completed"


async def test_twenty_at_once(connection: Connection, tmp_path: Path) -> None:
    log = tmp_path / "log"
    parts = [{"log": str(log), "n": n} for n in range(20)]
    identity = await enqueue(connection, "parent", {"parts": parts})
    assert await result_of(connection, identity) == list(range(20))
    ran = [f"ran part {n}" for n in range(20)]
    assert sorted(log.read_text().splitlines()) == sorted(ran)


async def test_two_levels(connection: Connection) -> None:
    identity = await enqueue(connection, "grandparent", {"parts": [{"n": 1}, {"n": 2}]})
    assert await result_of(connection, identity) == [1, 2]


@pytest.mark.parametrize(("how", "result"), [("anew", 7), ("fans", 8)])
async def test_what_takes_the_place_of_a_child_gives_its_result(
    connection: Connection, how: str, result: int
) -> None:
    identity = await enqueue(connection, "parent", {"parts": [{how: True}]})
    assert await result_of(connection, identity) == [result]


async def test_later_attempt_starts_no_child_again(connection: Connection, tmp_path: Path) -> None:
    log = tmp_path / "log"
    payload = {"parts": [{"log": str(log), "n": 1}], "log": str(log), "claims": 4}
    identity = await enqueue(connection, "parent", payload)
    assert await result_of(connection, identity) == [1]
    lines = log.read_text().splitlines()
    assert (lines.count("ran part 1"), lines.count("ran parent")) == (1, 4)


async def test_child_that_ends_before_its_parent_suspends(connection: Connection, tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    identity = await enqueue(connection, "busy-parent", {"log": str(tmp_path / "log")})
    assert await result_of(connection, identity) == [1, 1]


async def test_other_payload_is_refused(connection: Connection) -> None:
    row = await ended(connection, await enqueue(connection, "other-payload", max_attempts=1))
    (error,) = json.loads(row["errors"])
    assert (row["outcome"], error["type"]) == ("failed", "StepMismatchError")
    assert "step child part:1 was stored for other arguments" in error["message"]


async def test_group_goes_on_while_its_parent_waits(connection: Connection) -> None:
    identity = await enqueue(connection, "parent", {"parts": [{"waits": True}]}, group_key="thread")
    child = await child_of(connection, identity)
    await suspended(connection, identity)
    behind = await enqueue(connection, "part", {"n": 2}, group_key="thread")
    assert await result_of(connection, behind) == 2
    await Queue(connection).signal(child["item_key"], "go", None)
    assert await result_of(connection, identity) == [None]
    blocking = {"parts": [{"waits": True}], "how": {"blocking": True}}
    identity = await enqueue(connection, "parent", blocking, group_key="thread")
    child = await child_of(connection, identity)
    await suspended(connection, identity)
    behind = await enqueue(connection, "part", {"n": 3}, group_key="thread")
    await result_of(connection, await enqueue(connection, "part"))
    assert (await live(connection, behind))["claimed"] == []
    await Queue(connection).signal(child["item_key"], "go", None)
    assert await result_of(connection, behind) == 3
    assert await connection.fetchval("select count(*) from agent.event_hist where id = $1", identity) == 1


async def test_database_has_nothing_of_an_encrypted_childs_words(server: Server, database: str) -> None:
    own = await asyncpg.connect(database)
    since = await place(own)
    async with worker(database, SURELANE_HANDLERS=HANDLERS, **ON):
        row = await ended(own, await enqueue(own, "secretive", max_attempts=1))
    assert row["outcome"] == "completed", row["errors"]
    assert await stored(server, database, since, "hidden-word") == []
    await own.close()


async def test_key_that_another_job_has_is_refused(connection: Connection) -> None:
    identity = await enqueue(connection, "parent", {"parts": [{"n": 1}]}, max_attempts=1, run_in=3600)
    await Queue(connection).enqueue("part", {"waits": True}, item_key=f"{identity}:part:1")
    await connection.execute("update agent.event set vt = agent.clock() where id = $1", identity)
    row = await ended(connection, identity)
    assert row["outcome"] == "failed"
    assert json.loads(row["errors"])[0]["type"] == "Conflict"


async def test_children_are_started_once_although_the_worker_is_killed_everywhere(
    database: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    deaths = 0
    connection = await asyncpg.connect(database)
    settings = {"SURELANE_HANDLERS": HANDLERS, "SURELANE_WORKER_NAME": "mortal"}
    identity = await enqueue(connection, "mortal-parent", {"log": str(log)}, max_attempts=100)
    while not await connection.fetchval("select count(*) from agent.event_hist where id = $1", identity):
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
    assert await result_of(connection, identity) == [1, 2, 3, 4]
    children = await connection.fetch(CHILDREN, identity)
    await connection.close()
    assert [child["status"] for child in children] == ["completed"] * 4
    assert deaths == sum(line.startswith("died") for line in log.read_text().splitlines()) == 5


async def test_cancelling_a_running_parent_stops_it_and_its_child(
    connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    identity = await enqueue(connection, "busy-parent", {"log": str(log), "waits": True})
    child = await child_of(connection, identity)
    assert await Queue(connection).cancel(str(identity), by="ada", reason="enough") == "running"
    for event in (identity, child["id"]):
        assert (await ended(connection, event))["outcome"] == "cancelled"


async def test_child_in_a_group_takes_its_turn_there(connection: Connection) -> None:
    payload = {"parts": [{"n": 1}, {"n": 2}], "how": {"group_key": "orders"}}
    identity = await enqueue(connection, "parent", payload, group_key="orders")
    assert await result_of(connection, identity) == [1, 2]
    children = await connection.fetch(CHILDREN, identity)
    assert {child["group_key"] for child in children} == {"orders"}


async def test_child_that_blocks_its_own_group_is_refused(connection: Connection) -> None:
    payload = {"parts": [{"n": 1}], "how": {"group_key": "orders", "blocking": True}}
    identity = await enqueue(connection, "parent", payload, group_key="orders", max_attempts=1)
    (error,) = json.loads((await ended(connection, identity))["errors"])
    assert error["type"] == "StepMismatchError"
    assert await connection.fetch(CHILDREN, identity) == []
