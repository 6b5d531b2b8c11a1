"""Sessions: the locks by which workers prove that they live, and what follows when one is gone."""

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from surelane.calls import Connection
from surelane.errors import DatabaseRefused
from surelane_operator.changes import Changes
from surelane_operator.reads.timeline import story_of
from surelane_service.engine import Engine
from surelane_worker import sessions
from surelane_worker.duties import Sweeper
from tests.sql.conftest import Connect
from tests.sql.queue_steps import advance, claim, complete, enqueue, event_of, live, locked, only_row, pair


async def lose(queue: Connection, connection: Connection) -> None:
    """End a connection as the death of its process does, and wait until its lock is gone."""
    held = "select agent.open_sessions()"
    before = await queue.fetchval(held)
    connection.terminate()
    while await queue.fetchval(held) == before:
        pass


async def session(queue: Connection, own: Connection, name: str, *kinds: str, starts: bool = True) -> int:
    """Open a worker's session on a connection and announce the worker; return the session's key."""
    engine = Engine(own)
    await engine.open_session(name, "1.0.0", starts=starts)
    await engine.announce_worker(name, kinds, "1.0.0")
    return int(await queue.fetchval("select session from agent.worker where name = $1", name))


async def states(queue: Connection) -> dict[str, str]:
    return {worker["name"]: worker["state"] for worker in await Changes(queue).workers()}


async def why(queue: Connection, identity: int) -> tuple[str, str]:
    answer = await Changes(queue).why(identity)
    assert answer is not None
    return answer


async def dead(queue: Connection, connect: Connect) -> int:
    """Let worker w1 die with all the events of its kind; return its session's key."""
    dying = await connect("surelane_worker")
    key = await session(queue, dying, "w1", "mail")
    await claim(queue, "mail", worker="w1")
    await lose(queue, dying)
    return key


SILENT = "update agent.event set heartbeat_at = heartbeat_at - $1::int * interval '1 min'"


async def rescue(queue: Connection, worker: str, key: int) -> tuple[int, int]:
    return await Engine(queue).rescue_worker(worker, key, lost_for=timedelta(minutes=1), by="w2")


@pytest.mark.parametrize("ends", ["session", "heartbeats"])
async def test_the_name_of_a_live_worker_is_refused(queue: Connection, connect: Connect, ends: str) -> None:
    """Where a machine vanished, its session may stay for hours, but its heartbeats end."""
    first, second = await connect("surelane_worker"), await connect("surelane_worker")
    await session(queue, first, "w1", "mail")
    with pytest.raises(DatabaseRefused, match="another process works under the name w1: give each worker"):
        await session(queue, second, "w1", "mail")
    assert await session(queue, first, "w1", "mail", starts=False), "its own process may open it again"
    if ends == "session":
        await lose(queue, first)
    else:
        await queue.execute("update agent.worker set seen_at = seen_at - interval '2 min'")
    assert await session(queue, second, "w1", "mail")
    assert await states(queue) == {"w1": "alive"}


async def test_a_worker_with_claims_is_never_retired_but_dead(queue: Connection, connect: Connect) -> None:
    stopping, other = await connect("surelane_worker"), await connect("surelane_worker")
    key = await session(queue, stopping, "w1", "mail")
    await session(queue, other, "w2", "mail")
    first, second = await enqueue(queue, "mail"), await enqueue(queue, "mail")
    rows = await claim(queue, "mail", limit=2, worker="w1")
    await complete(queue, pair(next(row for row in rows if row["id"] == first)))

    await Engine(queue).retire_worker("w1")
    assert await states(queue) == {"w1": "alive", "w2": "alive"}
    await lose(queue, stopping)
    assert await rescue(other, "w1", key) == (1, 0)
    (row,) = await claim(queue, "mail", worker="w2")
    assert (row["id"], await complete(queue, pair(row))) == (second, ["done"])
    await Engine(queue).retire_worker("w2")
    assert await states(queue) == {"w1": "died"}


async def test_a_dead_workers_events_run_again_and_say_why(queue: Connection, connect: Connect) -> None:
    dying, other = await connect("surelane_worker"), await connect("surelane_worker")
    key = await session(queue, dying, "w1", "mail")
    await session(queue, other, "w2", "mail")
    identity = await enqueue(queue, "mail")
    (lost,) = await claim(queue, "mail", worker="w1")
    assert await states(queue) == {"w1": "alive", "w2": "alive"}

    await lose(queue, dying)
    assert await states(queue) == {"w1": "lost", "w2": "alive"}
    assert "w1's session" not in (await why(queue, identity))[1]
    assert "this worker's session is gone" in (await why(queue, identity))[1]
    assert (await Engine(other).watch_sessions("w2")).lost == [("w1", key)]
    heard: list[object] = []
    await other.add_listener("agent_event", lambda *message: heard.append(message[-1]))
    assert await rescue(other, "w1", key) == (1, 0)
    await other.execute("select")
    assert heard == [""], "an idle worker claims at once"
    assert await states(queue) == {"w1": "died", "w2": "alive"}
    assert (await Engine(other).watch_sessions("w2")).lost == []

    reason, detail = await why(queue, identity)
    assert (reason, "worker w1 died at" in detail) == ("due", True)
    (row,) = await claim(queue, "mail", worker="w2")
    assert (row["attempts"], await complete(queue, pair(lost))) == (2, ["stale"])
    reason, detail = await why(queue, identity)
    assert (reason, "held by w2" in detail) == ("running", True)
    assert "retried because worker w1 died at" in detail
    await complete(queue, pair(row))
    job: Any = await Changes(queue).get(identity)
    steps = [step for step in story_of(job) if step.what != "enqueued"]
    # The death was seen a minute ago, and in this test the claim is younger.
    told = [("died", "w1"), ("claimed", None), ("rescued", "w2"), ("claimed", "w2"), ("completed", "w2")]
    assert [(step.what, step.by) for step in steps] == told


async def test_only_who_is_back_in_time_keeps_its_claims(queue: Connection, connect: Connect) -> None:
    broken, again = await connect(), await connect()
    first = await session(queue, broken, "w1", "mail")
    identity = await enqueue(queue, "mail")
    (held,) = await claim(queue, "mail", worker="w1")
    assert await rescue(queue, "w1", first) == (0, 0), "its session is open"
    await lose(queue, broken)
    second = await session(queue, again, "w1", "mail", starts=False)
    assert second != first
    assert await rescue(queue, "w1", first) == (0, 0)
    assert await rescue(queue, "w1", second) == (0, 0)
    kept = await event_of(queue, identity)
    assert (await states(queue), kept["attempts"]) == ({"w1": "alive"}, 1)
    assert await complete(queue, pair(held)) == ["done"]
    # A supervisor starts a program again under a fixed name.
    dying, starting = await connect(), await connect()
    await session(queue, dying, "w3", "mail")
    identity = await enqueue(queue, "mail")
    await claim(queue, "mail", worker="w3")
    with pytest.raises(DatabaseRefused, match="another process"):
        await Engine(await connect()).open_session("w3", "1.0.0")
    assert (await why(queue, identity))[0] == "running", "a process of this name lives"
    await session(queue, dying, "w3", "mail", starts=False)
    await lose(queue, dying)
    await session(queue, starting, "w3", "mail")
    assert (await why(queue, identity))[0] == "due"


async def test_locks_stop_no_rescue_and_who_comes_back_lives(queue: Connection, connect: Connect) -> None:
    """A later look ends a claim that was locked: who found the death may have stopped meanwhile."""
    held, free = [await enqueue(queue, "mail") for _ in range(2)]
    owner, key = await connect(), await dead(queue, connect)
    async with locked(owner, held):
        await owner.execute("select from agent.worker for update")
        assert await rescue(queue, "w1", key) == (1, 1)
        assert (await why(queue, free))[0] != "running"
        assert await states(queue) == {"w1": "lost"}
    async with locked(owner, held):
        assert await rescue(queue, "w1", key) == (0, 1)
    assert (await Engine(queue).watch_sessions("w2")).lost == [("w1", key)]
    assert await rescue(queue, "w1", key) == (1, 0)
    assert (await Engine(queue).watch_sessions("w2")).lost == []
    assert await states(queue) == {"w1": "died"}
    await session(queue, await connect(), "w1")
    assert await states(queue) == {"w1": "alive"}


async def test_a_new_process_ends_a_predecessors_claim_that_was_locked_and_keeps_its_own(
    queue: Connection, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it was locked: its new session hides the claim from other workers."""
    monkeypatch.setattr(sessions, "LATE", (0.01, 0.01))
    monkeypatch.setattr(sessions, "LOCKED", (0.01,) * 10_000)
    looks, looked = iter(range(6)), asyncio.Event()

    def known_claims() -> list[tuple[int, int]]:
        if next(looks, None) is None:
            looked.set()
        return known

    dying, owner, starting = await connect(), await connect(), await connect()
    await session(queue, dying, "w1", "mail")
    old = await enqueue(queue, "mail")
    await claim(queue, "mail", worker="w1")
    own = await enqueue(queue, "mail")
    await lose(queue, dying)
    introduction = sessions.Introduction("w1", ["mail"], None, (1, 1), 3, {}, {})
    known: list[tuple[int, int]] = []
    opened = sessions.Session(introduction, cast("Any", None), Engine(starting), known_claims)
    async with locked(owner, old):
        await opened.open(starting)
        known += [pair(row) for row in await claim(queue, "mail", worker="w1")]
        assert [identity for identity, _ in known] == [own]
        late = asyncio.create_task(opened.release_late())
        await looked.wait()
    while (await why(queue, old))[0] == "running":
        pass
    late.cancel()
    assert (await why(queue, own))[0] == "running"


async def test_a_worker_is_listed_and_has_a_session_beside_locks(queue: Connection, connect: Connect) -> None:
    """What its locked row must say is noted later."""
    reopened, owner, engine = Engine(await connect()), await connect(), Engine(queue)
    assert await engine.introduce_worker("w1", "1.0.0", ["mail"], None)
    first = await session(queue, await connect(), "w1")
    async with owner.transaction():
        await owner.execute("select from agent.worker for update")
        assert await reopened.open_session("w1", "1.0.0", starts=False) is False
        assert not await engine.introduce_worker("w1", "1.0.0", ["mail", "note"], None)
        assert await engine.introduce_worker("w2", "1.0.0", ["mail"], None)
    open_sessions = sorted(await queue.fetchval("select agent.open_sessions()"))
    assert await reopened.open_session("w1", "1.0.0", starts=False) is True
    assert sorted(await queue.fetchval("select agent.open_sessions()")) == open_sessions
    worker = "select session, kinds from agent.worker where name = 'w1'"
    assert (await only_row(queue, worker))["session"] in set(open_sessions) - {first}
    assert await engine.introduce_worker("w1", "1.0.0", ["mail", "note"], None)
    assert (await only_row(queue, worker))["kinds"] == ["mail", "note"]


async def test_without_a_session_announcements_and_heartbeats_count_alone(queue: Connection) -> None:
    """A worker whose heartbeats stopped may live, and not know of it."""
    await Engine(queue).announce_worker("pooled", ["mail"], "1.0.0")
    seen = await Engine(queue).watch_sessions("pooled")
    assert (seen.lost, seen.known) == ([], 0)
    assert await states(queue) == {"pooled": "alive"}
    await queue.execute("update agent.worker set seen_at = seen_at - interval '2 min'")
    assert await states(queue) == {"pooled": "silent"}
    identity = await enqueue(queue, "mail")
    await claim(queue, "mail", worker="w1")
    await queue.execute(SILENT, 3)
    reason, detail = await why(queue, identity)
    assert (reason, "without a heartbeat since" in detail) == ("running", True)
    assert await Engine(queue).rescue_events() == 0
    await queue.execute(SILENT, 3)
    assert await Engine(queue).rescue_events() == 1
    job: Any = await Changes(queue).get(identity)
    last = story_of(job)[-1]
    assert (last.what, last.detail) == ("rescued", "claim 1 of w1 was ended: no heartbeat came for 300 s")


async def test_a_worker_rescues_at_its_start(queue: Connection, connect: Connect) -> None:
    settings = SimpleNamespace(sweep_interval=timedelta(hours=1), max_vt_age=timedelta(hours=1))
    other, nobody = Engine(await connect("surelane_worker")), cast("Any", None)
    sweeper = Sweeper(other, lambda: True, cast("Any", settings), ["mail"], nobody, lambda: 0.0)
    identity = await enqueue(queue, "mail")
    await claim(queue, "mail", worker="w1")
    await queue.execute(SILENT, 6)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        sweeps = tasks.create_task(sweeper.run())
        while (await why(queue, identity))[0] == "running":  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.05)
        sweeps.cancel()


@pytest.mark.parametrize("dies", ["session", "heartbeats"])
async def test_a_death_exhausts_a_groups_event(queue: Connection, service: Connection, dies: str) -> None:
    key = await session(queue, service, "w1", "mail")
    identity = await enqueue(queue, "mail", group_key="g", max_attempts=1)
    following = await enqueue(queue, "mail", group_key="g")
    await claim(queue, "mail", worker="w1")
    if dies == "session":
        await lose(queue, service)
        assert await rescue(queue, "w1", key) == (2, 0)
    else:
        await queue.execute(SILENT, 6)
        assert await Engine(queue).rescue_events() == 2
    assert await live(queue, identity) is None
    assert [row["id"] for row in await claim(queue, "mail", worker="w2")] == [following]


@pytest.mark.parametrize("ahead", [timedelta(minutes=19), timedelta(seconds=18)], ids=str)
async def test_a_clock_that_went_back_hides_no_claim_and_no_kind(
    queue: Connection, connect: Connect, ahead: timedelta
) -> None:
    """A worker that reconnects does not know of it: its answer was lost."""
    await session(queue, await connect(), "w1", "mail")
    identity = await enqueue(queue, "mail")
    await advance(queue, ahead)
    await enqueue(queue, "mail")
    await claim(queue, "mail", worker="w1")
    await advance(queue, -ahead)
    _, released = await Engine(queue).release_unknown("w1", [], None)
    assert (released, (await why(queue, identity))[0]) == (2, "due")
    dying = await connect()
    await advance(queue, timedelta(minutes=19))
    await session(queue, dying, "w1", "mail")
    await lose(queue, dying)
    await advance(queue, timedelta(minutes=-19))
    await session(queue, await connect(), "w2", "note")
    assert "note" in await queue.fetchval("select agent.claimable_kinds()")


async def test_a_sweep_ends_a_claim_that_had_lapsed_as_its_worker_died_before_the_clock_went_back(
    queue: Connection, connect: Connect
) -> None:
    identity = await enqueue(queue, "mail")
    key = await dead(queue, connect)
    await advance(queue, timedelta(minutes=19))
    assert await rescue(queue, "w1", key) == (0, 0)
    await advance(queue, timedelta(minutes=-19))
    assert (await why(queue, identity))[0] == "running"
    assert await Engine(queue).rescue_events() == 1
    job: Any = await Changes(queue).get(identity)
    last = story_of(job)[-1]
    assert (last.what, last.detail) == ("rescued", "claim 1 of w1 was ended")


async def test_a_sweep_leaves_what_a_worker_claims_after_it_was_taken_for_dead(
    queue: Connection, connect: Connect
) -> None:
    """It may live, as after the server died: it opens another session soon."""
    key = await dead(queue, connect)
    assert await rescue(queue, "w1", key) == (0, 0)
    await enqueue(queue, "mail")
    (claimed,) = await claim(queue, "mail", worker="w1")
    assert await Engine(queue).rescue_events() == 0
    assert await complete(queue, pair(claimed)) == ["done"]
