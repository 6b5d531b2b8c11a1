"""What workers promise: real processes that share a queue, are killed, hang, and are stopped."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import accumulate
from pathlib import Path

import pytest

from surelane.calls import Connection
from surelane.queue import Queue
from surelane_operator.changes import Changes
from tests.processes import Service, until
from tests.promises.conftest import becomes, completed, noted, working
from tests.promises.handlers import TOGETHER
from tests.system.restartable import Restartable
from tests.system.worker import claimed, ended, enqueue, live

Store = Callable[..., Awaitable[int]]
ALIVE = "select count(*) = $1 from agent.list_workers() as w where w.alive and w.kinds <> '{}'"
SOON = {"SURELANE_SESSION_GRACE": "500ms"}
LEASE = {"SURELANE_LEASE": "10s", "SURELANE_SWEEP_INTERVAL": "200ms"}


def said(running: Service, text: str) -> Callable[[], bool]:
    """Return what tells whether a worker has logged something."""
    return lambda: any(text in line for line in running.output)


@pytest.mark.promise("claims")
@pytest.mark.promise("order")
@pytest.mark.usefixtures("fleet")
async def test_a_group_is_handled_by_one_worker_at_a_time_in_order_and_its_retry_comes_first(
    queue: Connection, store: Store, tmp_path: Path
) -> None:
    async with queue.transaction():
        some = [await store("numbered", "T:C:1", n=n, fail=n == 2) for n in range(8)]
        others = [await store("numbered", n=100 + n) for n in range(20)]
    rows = [await ended(queue, identity, within=90) for identity in some + others]
    assert [row["attempts"] for row in rows] == [1, 1, 2, 1, 1, 1, 1, 1] + [1] * 20
    lines = [line for line in (tmp_path / "log").read_text().split("\n") if len(line.split(" ")[-1]) == 1]
    assert lines == [f"{what} {n}" for n in (0, 1, 2, 2, 3, 4, 5, 6, 7) for what in ("begin", "end")]


@pytest.mark.promise("limits")
@pytest.mark.usefixtures("fleet")
async def test_no_more_events_run_at_once_than_a_limit_allows(
    queue: Connection, store: Store, tmp_path: Path
) -> None:
    await becomes(queue, ALIVE, 2)
    async with queue.transaction():
        some = [await store("limited") for _ in range(20)]
    for identity in some:
        await completed(queue, identity)
    lines = (tmp_path / "log").read_text().split()
    most = max(accumulate(1 if line == "begin" else -1 for line in lines))
    assert (most, len(lines)) == (TOGETHER, 40)


@pytest.mark.promise("quick messages")
@pytest.mark.usefixtures("fleet")
async def test_every_attempt_of_a_run_gets_the_same_quick_messages(
    queue: Connection, store: Store, tmp_path: Path
) -> None:
    async with queue.transaction():
        run, follower = [await store("talk", "T:C:talk", text=text) for text in "ab"]
        await queue.execute(
            "update agent.event set enqueued_at = enqueued_at - interval '1h', event_ts = event_ts - interval '1h'"
            " where id = any($1)",
            [run, follower],
        )
    assert await completed(queue, run) == ["a", "b"]
    assert (await ended(queue, follower))["reason"] == f"coalesced into {run}"
    assert (tmp_path / "log").read_text().split("\n")[:2] == ["a b", "a b"]


@pytest.mark.promise("runs again")
@pytest.mark.usefixtures("fleet")
async def test_a_new_run_of_an_ended_event_keeps_its_steps(
    queue: Connection, store: Store, tmp_path: Path
) -> None:
    identity = await store("approved")
    await Queue(queue).signal(str(identity), "answer", "yes")
    assert await completed(queue, identity) == ["first", "yes", "second"]
    new = await Changes(queue).rerun_as_new(identity, from_step="second")
    assert new.id is not None
    assert await completed(queue, new.id) == ["first", "yes", "second"]
    assert (tmp_path / "log").read_text().split() == ["first", "second", "second"]
    old, now = [await Changes(queue).get(each) for each in (identity, new.id)]
    assert old is not None
    assert now is not None
    assert (old["rerun_as"], now["rerun_of"], old["status"]) == ([new.id], identity, "completed")


@pytest.mark.promise("cancelled")
@pytest.mark.usefixtures("fleet")
async def test_an_event_that_is_cancelled_while_it_runs_ends(
    queue: Connection, store: Store, tmp_path: Path
) -> None:
    identity = await store("hold")
    await noted(tmp_path / "log", "begin 1")
    assert await Queue(queue).cancel(str(identity), by="U1", reason="enough") == "running"
    row = await ended(queue, identity, within=90)
    assert (row["outcome"], row["reason"]) == ("cancelled", "cancelled while running by U1: enough")
    assert (tmp_path / "log").read_text().split("\n")[:2] == ["begin 1", "cancelled"]


@pytest.mark.promise("wake-ups")
async def test_an_event_is_found_although_the_worker_that_answers_wake_ups_died(
    database: str, connection: Connection
) -> None:
    """The deputy claims what is left: it polls an hour later, and takes the other for dead after five minutes."""
    grace = {"SURELANE_SESSION_GRACE": "5m", "SURELANE_POLL_INTERVAL": "1h"}
    async with working(database, **grace) as first:
        await until(said(first, "position taken"), within=90, what="the responder")
        async with working(database, **grace) as second:
            await until(said(second, "position taken"), within=90, what="the deputy")
            first.child.kill()
            await completed(connection, await enqueue(connection, "nothing"))


@pytest.mark.promise("leases")
async def test_a_live_lease_is_renewed_and_does_not_expire_at_the_last_attempt(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    async with working(database, **LEASE):
        payload = {"log": str(tmp_path / "log")}
        identity = await enqueue(connection, "hold", payload, max_attempts=1)
        end = (await claimed(connection, identity, within=90))["vt"]
        await becomes(connection, "select vt > $2 from agent.event where id = $1", identity, end)
        (tmp_path / "log.go").touch()
        row = await ended(connection, identity, within=90)
    assert (row["outcome"], row["attempts"]) == ("completed", 1)


@pytest.mark.promise("dies")
@pytest.mark.promise("steps")
async def test_events_of_a_killed_worker_run_again_on_another_and_repeat_no_stored_step(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(working(database, **SOON))
        await becomes(connection, ALIVE, 2)
        identity = await enqueue(connection, "steps", {"log": str(log)}, max_attempts=9)
        for where in ("in first", "after first", "after the wait"):
            await noted(log, f"died {where}")
            await stack.enter_async_context(working(database, **SOON))
        assert await completed(connection, identity) == ["first", "second"]
    lines = log.read_text().split("\n")
    assert [line for line in lines if line in ("first", "second")] == ["first", "second"]
    assert await connection.fetchval("select count(*) from agent.worker where died_at is not null") == 3


@pytest.mark.promise("hangs")
@pytest.mark.promise("fence")
async def test_events_of_a_worker_that_hangs_go_to_another_and_the_first_one_changes_nothing(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    payload = {"log": str(tmp_path / "log")}
    async with working(database, SURELANE_LEASE="6s") as first:
        identity = await enqueue(connection, "hold", payload)
        await noted(tmp_path / "log", "begin 1")
        first.process.send_signal(signal.SIGSTOP)
        async with working(database, SURELANE_LEASE="10m"):
            await noted(tmp_path / "log", "begin 2")
            first.process.send_signal(signal.SIGCONT)
            await until(said(first, "lease lost"), within=90, what="the loss")
            await noted(tmp_path / "log", "cancelled")
            (tmp_path / "log.go").touch()
            assert await completed(connection, identity) == 2
    assert (await ended(connection, identity))["attempts"] == 2


@pytest.mark.promise("grace")
async def test_a_restart_of_the_database_costs_no_running_event_its_attempt(
    postgres: Restartable, tmp_path: Path
) -> None:
    payload, grace = {"log": str(tmp_path / "log")}, {"SURELANE_SESSION_GRACE": "2m"}  # for a slow machine
    async with working(postgres.uri(), **grace), working(postgres.uri(), **grace):
        async with postgres.connected() as connection:
            running = [await enqueue(connection, "hold", payload) for _ in range(6)]
            for identity in running:
                await claimed(connection, identity, within=90)
        await postgres.restart(signal.SIGQUIT)
        (tmp_path / "log.go").touch()
        async with postgres.connected() as connection:
            assert [await completed(connection, identity) for identity in running] == [1] * 6
            assert await connection.fetch("select name from agent.worker where died_at is not null") == []


@pytest.mark.promise("stops")
async def test_a_worker_that_is_stopped_finishes_what_runs_and_leaves_the_rest(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with working(database) as running:
        async with connection.transaction():
            first, second = [
                await enqueue(connection, "hold", {"log": str(log)}, group_key="T:C:1") for _ in range(2)
            ]
        await noted(log, "begin 1")
        running.process.send_signal(signal.SIGTERM)
        await until(said(running, "draining"), within=90, what="the drain")
        (tmp_path / "log.go").touch()
        assert await asyncio.wait_for(running.child.wait(), 90) == 0
    assert (await ended(connection, first))["attempts"] == 1
    row = await live(connection, second)
    assert (row["attempts"], row["claimed_by"]) == (0, None)
