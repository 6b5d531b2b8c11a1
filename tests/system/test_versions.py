"""Versions of handlers: a run stays with the version that it began under, and changed code repeats no step."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from surelane.queue import Queue
from surelane_operator.doctor import examine
from tests.processes import Service, until
from tests.system.test_durable import result_of, suspended
from tests.system.worker import ended, enqueue, live, worker

SET = "tests.system.version_handlers:"


@pytest.fixture
async def connection(database: str) -> AsyncIterator[Connection]:
    connected = await asyncpg.connect(database)
    yield connected
    await connected.close()


def deployed(database: str, handlers: str, ready: str = "/readyz") -> AbstractAsyncContextManager[Service]:
    """Run a worker with one set of handlers."""
    settings = {"SURELANE_HANDLERS": f"{SET}{handlers}", "SURELANE_WORKER_NAME": handlers}
    return worker(database, ready=ready, SURELANE_POLL_INTERVAL="500ms", **settings)


async def begun(
    database: str,
    connection: Connection,
    handlers: str,
    log: Path,
    events: int = 1,
    most: int = 3,
    **payload: object,
) -> list[int]:
    """Begin runs with a worker of one deployment, and stop it once they wait."""
    async with deployed(database, handlers):
        found = [
            await enqueue(connection, "order", {"log": str(log), **payload}, max_attempts=most)
            for _ in range(events)
        ]
        for identity in found:
            await suspended(connection, identity)
    return found


async def go(connection: Connection, *identities: int) -> None:
    for identity in identities:
        await Queue(connection).signal(str(identity), "go")


async def of_kind(connection: Connection, identity: int, kind: str) -> asyncpg.Record:
    """Wait until a live event has a kind, and no worker runs it."""
    async with asyncio.timeout(60):
        while True:
            row = await live(connection, identity)
            if row["kind"] == kind and row["claimed_by"] is None:
                return row
            await asyncio.sleep(0.02)


async def test_one_worker_runs_the_function_of_the_version_that_a_run_began_under(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    (old,) = await begun(database, connection, "unnamed", log)
    async with deployed(database, "both"):
        new = await enqueue(connection, "order", {"log": str(log)})
        await suspended(connection, new)
        await go(connection, old, new)
        assert await result_of(connection, old) == ["1", "1", "1"]
        assert await result_of(connection, new) == ["2", "2", "2"]
    assert [line for line in log.read_text().splitlines() if line.startswith("paid")] == ["paid 1", "paid 2"]


async def test_greater_version_is_found_by_its_numbers(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    async with deployed(database, "tenth"):
        identity = await enqueue(connection, "order", {"log": str(tmp_path / "log")})
        await go(connection, identity)
        assert await result_of(connection, identity) == ["10", "10", "10"]


async def test_run_waits_for_a_worker_that_has_its_version(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    (old,) = await begun(database, connection, "unnamed", log)
    async with deployed(database, "second"):
        await go(connection, old)
        row = await of_kind(connection, old, "order@1")
        assert row["attempts"] == 0
        async with deployed(database, "first"):
            assert await result_of(connection, old) == ["1", "1", "1"]
    lines = log.read_text().splitlines()
    assert lines == ["began 1 as order", "paid 1", "began 1 as order", "shipped 1"]


async def test_run_that_its_worker_died_in_stays_with_its_version(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with deployed(database, "second", ready="") as mortal:
        identity = await enqueue(connection, "order", {"log": str(log), "dies": True})
        await mortal.child.wait()
        assert mortal.child.exit_code == -signal.SIGKILL
    async with deployed(database, "first"):
        await of_kind(connection, identity, "order@2")
    async with deployed(database, "second"):
        await go(connection, identity)
        assert await result_of(connection, identity) == ["2", "2", "2"]
    assert log.read_text().splitlines().count("paid 2") == 1


async def test_rolling_deployment_ends_each_run_in_its_version_and_passes_none_to_and_fro(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    old = await begun(database, connection, "unnamed", log, 5)
    new = await begun(database, connection, "both", log, 5)
    async with deployed(database, "unnamed"), deployed(database, "both"):
        later = [await enqueue(connection, "order", {"log": str(log)}) for _ in range(5)]
        await go(connection, *old, *new, *later)
        for identity in old:
            assert await result_of(connection, identity) == ["1", "1", "1"]
        for identity in new:
            assert await result_of(connection, identity) == ["2", "2", "2"]
        for identity in later:
            paid, shipped, version = await result_of(connection, identity)
            assert paid == shipped == version
    claims = "select max(cardinality(claimed)) from agent.event_hist"
    assert await connection.fetchval(claims) <= 3  # begin, pass on once, end
    assert log.read_text().count("paid") == log.read_text().count("shipped") == 15


async def test_killed_workers_lose_no_run_on_its_way_to_its_version(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    old = await begun(database, connection, "first", log, 8, most=9)
    await go(connection, *old)
    for deaths in range(1, 4):
        async with deployed(database, "second", ready="") as mortal:
            passed = "select count(*) from agent.event where kind = 'order@1' or cardinality(claimed) > $1"
            async with asyncio.timeout(60):
                while not await connection.fetchval(passed, deaths):
                    pass
            mortal.child.kill()
            await mortal.child.wait()
    async with deployed(database, "first"), deployed(database, "second"):
        for identity in old:
            assert await result_of(connection, identity) == ["1", "1", "1"]
    assert log.read_text().count("paid 1") == log.read_text().count("shipped 1") == 8
    assert await connection.fetchval("select max(attempts) from agent.event_hist") <= 4


async def test_old_worker_without_a_version_gets_its_runs_while_it_lives(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    old = await begun(database, connection, "unnamed", tmp_path / "log", 3)
    async with deployed(database, "second"), deployed(database, "unnamed"):
        await go(connection, *old)
        for identity in old:
            assert await result_of(connection, identity) == ["1", "1", "1"]


async def test_failed_run_of_an_old_version_has_its_hook_and_runs_again_in_its_version(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    (old,) = await begun(database, connection, "unnamed", log, fails=True)
    async with deployed(database, "second"):
        await go(connection, old)
        await of_kind(connection, old, "order@1")
    async with deployed(database, "both"):
        assert (await ended(connection, old))["outcome"] == "failed"
        await until(lambda: "hook for order\n" in log.read_text())
        await connection.fetchval("select agent.rerun_events($1)", [old])
        await ended(connection, old)
        query = "select rerun from agent.rerun_as_new($1, 'ship', $2)"
        again = await connection.fetchval(query, old, json.dumps({"log": str(log)}))
        assert await result_of(connection, again) == ["1", "1", "1"]
        anew = await connection.fetchval("select rerun from agent.rerun_as_new($1, null, null)", again)
        await go(connection, anew)
        assert await result_of(connection, anew) == ["2", "2", "2"]
    assert "began 2 as order@1" not in log.read_text()


async def test_successor_of_a_run_begins_in_the_newest_version(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    (old,) = await begun(database, connection, "unnamed", log, anew=True)
    async with deployed(database, "second"):
        await go(connection, old)
        await of_kind(connection, old, "order@1")
        async with deployed(database, "first"):
            assert (await ended(connection, old))["outcome"] == "completed"
            (successor,) = await connection.fetch("select id, kind from agent.event")
            assert successor["kind"] == "order"
            await go(connection, successor["id"])
            result = await result_of(connection, successor["id"])
            assert result in (["1"] * 3, ["2"] * 3)


async def test_child_of_an_old_version_tells_its_parent(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with deployed(database, "second"):
        parent = await enqueue(connection, "parent", {"log": str(log)})
        await suspended(connection, parent)
        child = await connection.fetchval("select id from agent.event where kind = 'order'")
        await suspended(connection, child)
    async with deployed(database, "first"):
        await go(connection, child)
        await of_kind(connection, child, "order@2")
    async with deployed(database, "second"):
        assert await result_of(connection, parent) == ["2", "2", "2"]


async def test_limited_run_is_passed_to_its_version(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    old = await begun(database, connection, "first_limited", tmp_path / "log", 3)
    async with deployed(database, "second_limited"):
        new = await enqueue(connection, "order", {"log": str(tmp_path / "log")})
        await go(connection, *old, new)
        assert await result_of(connection, new) == ["2", "2", "2"]
        for identity in old:
            await of_kind(connection, identity, "order@1")
        async with deployed(database, "first_limited"):
            for identity in old:
                assert await result_of(connection, identity) == ["1", "1", "1"]


async def test_run_keeps_its_place_in_its_group(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with deployed(database, "first"):
        old = await enqueue(connection, "order", {"log": str(log), "blocking": True}, group_key="thread")
        await suspended(connection, old)
    async with deployed(database, "second"), deployed(database, "first"):
        later = await enqueue(connection, "order", {"log": str(log)}, group_key="thread")
        await Queue(connection).signal(str(later), "go")
        await go(connection, old)
        assert await result_of(connection, old) == ["1", "1", "1"]
        await result_of(connection, later)
    lines = log.read_text().splitlines()
    assert lines.index("shipped 1") < max(nth for nth, line in enumerate(lines) if line.startswith("paid"))
    assert sum(line.startswith("paid") for line in lines) == 2


async def test_doctor_says_how_many_runs_need_which_version(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    await begun(database, connection, "first", tmp_path / "log", 3)
    await begun(database, connection, "second", tmp_path / "log", 2)
    async with deployed(database, "second"):
        await enqueue(connection, "order", {"log": str(tmp_path / "log")}, run_in=600)
        found = [each for each in await examine(database, connection) if each.check == "versions"]
    (finding,) = found
    assert finding.level == "warning"
    assert finding.found == "order: 3 runs of version 1 (no worker), 2 of version 2"


# --- Changed code without a version


@pytest.fixture(scope="module")
async def running(shared_database: str) -> AsyncIterator[Service]:
    async with worker(shared_database, SURELANE_HANDLERS=f"{SET}code") as started:
        yield started


@pytest.fixture(scope="module")
async def shared(shared_database: str) -> AsyncIterator[Connection]:
    connected = await asyncpg.connect(shared_database)
    yield connected
    await connected.close()


CHANGES = [
    pytest.param([["a"], ["b"]], ["a"], id="renamed"),
    pytest.param([["a", "c"], ["a", "b", "c"]], ["a", "c"], id="inserted"),
    pytest.param([["a", "b", "c"], ["a", "c", "d"]], ["a", "b", "c"], id="removed"),
    pytest.param([["a", "b"], ["b", "a2"]], ["a", "b"], id="moved"),
    pytest.param([["a", "b"], ["a", "~s", "b"]], ["a", "b"], id="sleep inserted"),
    pytest.param([["@leaf"], ["@other"]], [], id="child renamed"),
]


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("kind", ["code", "code-in-thread"])
@pytest.mark.parametrize(("runs", "ran"), CHANGES)
async def test_changed_step_is_refused_before_it_runs(
    shared: Connection, tmp_path: Path, kind: str, runs: list[list[str]], ran: list[str]
) -> None:
    log = tmp_path / "log"
    log.touch()
    if runs[0] == ["@leaf"]:
        runs = [["@leaf", "z"], ["@leaf", "z"], *runs[1:]]
    row = await ended(shared, await enqueue(shared, kind, {"log": str(log), "runs": runs}, max_attempts=2))
    error = json.loads(row["errors"])[-1]
    assert (row["outcome"], error["type"]) == ("failed", "StepMismatchError"), row
    assert "nothing was repeated" in error["message"]
    assert log.read_text().split() == (ran or ["z"])


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("kind", ["code", "code-in-thread"])
@pytest.mark.parametrize(
    "runs",
    [
        pytest.param([["a"], ["a", "b"]], id="added at the end"),
        pytest.param([["a", "b"], ["a"]], id="removed at the end"),
        pytest.param(
            [["a", "~s", "b"], ["a", "~s", "b", "?p", "c"], ["a", "~s", "b", "?p", "c"]], id="patched"
        ),
    ],
)
async def test_change_behind_what_is_stored_goes_on(
    shared: Connection, tmp_path: Path, kind: str, runs: list[list[str]]
) -> None:
    identity = await enqueue(shared, kind, {"log": str(tmp_path / "log"), "runs": runs}, max_attempts=9)
    await result_of(shared, identity)
    lines = (tmp_path / "log").read_text().split()
    assert len(lines) == len(set(lines)), "a step ran twice"


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("kind", ["racing", "timed"])
async def test_tasks_and_timeouts_are_no_change(shared: Connection, tmp_path: Path, kind: str) -> None:
    identity = await enqueue(shared, kind, {"log": str(tmp_path / "log")}, max_attempts=2)
    assert await result_of(shared, identity) == "done"


PATCHES: list[Any] = [
    pytest.param([["?p", "a"]], True, id="new run"),
    pytest.param([["a"], ["?p", "a"]], False, id="run that was past it"),
    pytest.param([["a"], ["a", "?p", "b"]], True, id="run that was not there yet"),
    pytest.param([["a", "b"], ["a", "?p", "b"], ["a", "?p", "b"]], False, id="the same in later attempts"),
    pytest.param([["?p", "a"], ["?p", "a"], ["?p", "a"]], True, id="the same once it is patched"),
    pytest.param([["?p", "a"], ["a"]], None, id="patch removed"),
    pytest.param([["a", "~s"], ["?p", "a", "~s"]], False, id="asked twice"),
]


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize(("runs", "answer"), PATCHES)
async def test_patch_is_for_runs_that_were_not_past_it(
    shared: Connection, tmp_path: Path, runs: list[list[str]], answer: bool | None
) -> None:
    identity = await enqueue(shared, "code", {"log": str(tmp_path / "log"), "runs": runs}, max_attempts=9)
    result = await result_of(shared, identity)
    assert [each for each in result if isinstance(each, bool)] == ([] if answer is None else [answer])
