"""Workers that die without a word, that stand still, and that lose their connections: by their sessions."""

import asyncio
from typing import Any

import pytest
import structlog

from surelane.testing import fleet, virtual
from surelane_operator.changes import Changes
from surelane_operator.reads.timeline import story_of
from surelane_worker import Context, Event, Handlers
from tests.fleet.statements import statements

SOON = {"SURELANE_SESSION_GRACE": "5s"}
DEAD = "select name from agent.worker where died_at is not null"


def hanging() -> Handlers:
    """Return a handler that does not end the first time."""
    handlers = Handlers()

    @handlers.on("hang-once")
    async def hang(event: Event, _: Context) -> int:
        if event.claim == 1:
            await asyncio.sleep(event.payload.get("seconds", 3000))
        return event.claim

    return handlers


async def held(f: Any, **job: Any) -> tuple[Any, Any]:
    """Store an event; return it and the worker that runs it, once all workers are listed."""
    event = await f.enqueue("hang-once", job)
    await f.until(lambda: any(member.runs(event) for member in f.workers))
    await f.sleep(2)
    return event, next(member for member in f.workers if member.runs(event))


def break_session(member: Any) -> None:
    """Break the connection that holds a worker's session."""
    for wire in list(member.host.wires):
        if wire.is_open() and not wire._kept:  # noqa: SLF001 - pools have the others
            wire.end()


async def session(f: Any, name: str) -> int | None:
    query = "select session from agent.worker where name = $1 and session = any(agent.open_sessions())"
    rows = await f.sql(query, name)
    return rows[0]["session"] if rows else None


@virtual
async def test_a_killed_workers_events_run_again_within_seconds_and_that_is_told() -> None:
    """With default settings, and without any other event."""
    async with fleet(hanging(), workers=2) as f:
        event, dying = await held(f)
        began, changes = f.now, Changes(f.connection)
        with structlog.testing.capture_logs() as logs:
            await f.kill(dying)
            assert await event.result() == 2
            assert f.now - began < 3
            await f.sleep(1)
        assert any(each["event"] == "worker died" for each in logs)
        (dead,) = [each for each in await changes.workers() if each["name"] == dying.host.name]
        assert (dead["alive"], dead["state"]) == (False, "died")
        job: Any = await changes.get(event.id)
        steps = [(step.what, step.by) for step in story_of(job)]
        (survivor,) = f.workers
        assert {("died", dying.host.name), ("rescued", survivor.host.name)} <= set(steps)
        assert "lapsed" not in [what for what, _ in steps]
        assert job["attempts"] == 2


@virtual
async def test_a_worker_that_could_not_end_a_claim_is_rescued() -> None:
    """Another transaction has the event's row locked as the worker stops, for longer than it waits."""
    async with fleet(hanging(), workers=2, settings={**SOON, "SURELANE_DRAIN_TIMEOUT": "100ms"}) as f:
        event, stopping = await held(f)
        foreign, run = await f.database.lend("surelane"), f.database.run
        await run(foreign, "execute", "begin")
        await run(foreign, "execute", f"select from agent.event where id = {event.id} for update")
        with structlog.testing.capture_logs() as logs:
            await f.drain(stopping)
            await f.sleep("5s")
            await run(foreign, "execute", "rollback")
            assert await event.result() == 2
            await f.sleep(1)
        told = [(each["event"].split(";")[0], each.get("worker")) for each in logs]
        assert ("stopped with unsettled events", None) in told
        assert ("worker died", stopping.host.name) in told


@virtual
async def test_a_broken_session_is_opened_again_and_its_claims_are_kept_if_they_still_stand() -> None:
    """By a worker without a free slot, too: it does not claim, and so would not notice."""
    async with fleet(hanging(), workers=2, settings={**SOON, "SURELANE_CONCURRENCY": "1"}) as f:
        event, member = await held(f)
        before = await session(f, member.host.name)
        break_session(member)
        await f.sleep("20s")
        after = await session(f, member.host.name)
        assert before != after
        assert after is not None
        row = await event.row()
        assert (row["attempts"], row["claimed_by"]) == (1, member.host.name)
        # What it lost meanwhile it learns at once: its next heartbeat would come more than a minute later.
        await f.sql(
            "update agent.event set claimed = claimed || agent.clock(), claimed_by = 'another',"
            " vt = agent.clock() + interval '1h'"
        )
        with structlog.testing.capture_logs() as logs:
            break_session(member)
            await f.until(lambda: any("lease lost" in each["event"] for each in logs), "10s")


@virtual
async def test_workers_that_stand_still_are_not_dead() -> None:
    """Neither one with claims, for longer than a grace, nor any that it watched."""
    async with fleet(hanging(), workers=2, settings=SOON) as f:
        event, member = await held(f, seconds=30)
        f.freeze(member, "20s")
        assert await event.result() == 1
        assert (await event.row())["claimed_by"] == member.host.name
        await f.sleep("10s")
        assert await f.sql(DEAD) == []


@pytest.mark.parametrize("notifications", ["true", "false"])
@virtual
async def test_a_worker_is_listed_with_its_kinds_from_before_it_claims_to_its_end(notifications: str) -> None:
    """Ingest waits for the answers of listed workers alone. Behind a pooler a worker has no session."""
    listed: list[tuple[list[str], bool]] = []

    async def look(wire: Any, query: str) -> None:
        if "claim_events" in query and wire.host.name == "worker-1":
            rows = await f.sql("select kinds, session is null as alone from agent.worker")
            listed.extend((row["kinds"], row["alone"]) for row in rows)

    async with fleet(hanging(), workers=0, settings={"SURELANE_NOTIFICATIONS": notifications}) as f:
        with statements(before=look):
            member = f.start()
            event, _ = await held(f, seconds=10)
            await event.result()
            assert listed
            assert all(
                "hang-once" in kinds and alone is (notifications == "false") for kinds, alone in listed
            )
            await f.drain(member)
        assert await f.sql("select from agent.worker") == []


@virtual
async def test_the_deputy_watches_the_others_while_the_responder_hangs() -> None:
    async with fleet(hanging(), workers=0, settings={**SOON, "SURELANE_CONCURRENCY": "1"}) as f:
        for _ in range(3):
            f.start()
            await held(f)
        f.freeze(f.workers[0], "3m")
        await f.sleep(1)
        await f.kill(f.workers[2])
        await f.sleep("1m")
        assert [row["name"] for row in await f.sql(DEAD)] == ["worker-3"]
