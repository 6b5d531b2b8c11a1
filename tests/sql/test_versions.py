"""A run that its worker lacks the version for goes to workers that have it, and keeps its place."""

import json
from datetime import timedelta
from typing import Any

import pytest

from surelane.calls import Connection
from surelane_service.engine import Engine
from tests.sql.conftest import Connect
from tests.sql.queue_steps import Pair, claim, complete, ending, enqueue, event_of, fail, locked, pair


async def announce(queue: Connection, name: str, *kinds: str) -> None:
    await queue.execute("select agent.announce_worker($1, $2, '1.0.0')", name, kinds)


async def passed_on(queue: Connection, item: Pair, version: str = "1") -> str:
    """Settle a claim of a worker that lacks the version; return the answer."""
    argument = json.dumps({"pause": 0, "blocking": True, "begun": False, "version": version})
    (answer,) = await Engine(queue).settle([(*item, "snooze", argument)])
    return answer.value


async def test_run_gets_the_kind_of_its_version_unless_cancelled(queue: Connection, connect: Connect) -> None:
    identity = await enqueue(queue, "order")
    (row,) = await claim(queue, "order")
    assert await passed_on(queue, pair(row)) == "done"
    assert await passed_on(queue, pair(row)) == "stale"
    assert await claim(queue, "order") == []
    (again,) = await claim(queue, "order@1")
    assert (again["id"], again["attempts"], json.loads(again["notes"])) == (identity, 1, {"version": "1"})
    assert await passed_on(queue, pair(again), "2") == "done"
    (last,) = await claim(queue, "order@2")
    assert await complete(queue, pair(last)) == ["done"]
    assert await ending(queue, identity) == ("completed", None)
    identity = await enqueue(queue, "order", item_key="k")
    (row,) = await claim(queue, "order")
    async with locked(await connect(), identity):
        assert await passed_on(queue, pair(row)) == "busy"
    await queue.fetchval("select agent.cancel_event('k')")
    assert await passed_on(queue, pair(row)) == "done"
    assert (await ending(queue, identity))[0] == "cancelled"


async def test_group_waits_for_the_run_while_a_worker_has_its_version(queue: Connection) -> None:
    await announce(queue, "old", "order", "order@1")
    await announce(queue, "new", "order", "order@2")
    first = await enqueue(queue, "order", group_key="g")
    (row,) = await claim(queue, "order")
    second = await enqueue(queue, "order", group_key="g")
    assert await passed_on(queue, pair(row)) == "done"
    assert await claim(queue, "order", "order@2") == [], "the later event overtook the run"
    (again,) = await claim(queue, "order@1")
    assert again["id"] == first
    assert await complete(queue, pair(again)) == ["done"]
    (later,) = await claim(queue, "order", "order@2")
    assert later["id"] == second
    # Where no worker has the version, the group goes on.
    behind = await enqueue(queue, "order", group_key="g")
    assert await passed_on(queue, pair(later), "3") == "done"
    assert [row["id"] for row in await claim(queue, "order", "order@2")] == [behind]


async def test_run_of_version_1_waits_for_a_live_worker_that_names_none(queue: Connection) -> None:
    await announce(queue, "old", "order")
    await announce(queue, "new", "order", "order@2")
    identity = await enqueue(queue, "order")
    (row,) = await claim(queue, "order")
    assert await passed_on(queue, pair(row)) == "done"
    stored = await event_of(queue, identity)
    assert (stored["kind"], stored["notes"]) == ("order", None)
    assert stored["vt"] > row["vt"] - timedelta(minutes=10)


async def test_failure_hook_and_parent_hear_the_kind_without_a_version(queue: Connection) -> None:
    await announce(queue, "w", "order", "surelane.failed:order")
    await enqueue(queue, "order", max_attempts=1)
    (row,) = await claim(queue, "order")
    await passed_on(queue, pair(row), "2")
    (again,) = await claim(queue, "order@2")
    assert await fail(queue, pair(again)) == ["done"]
    assert await queue.fetchval("select count(*) from agent.event where kind = 'surelane.failed:order'") == 1


@pytest.mark.parametrize(
    ("kind", "notes", "base"),
    [
        ("order@1", '{"version": "1"}', "order"),
        ("order", '{"version": "1"}', "order"),
        ("mail@1", None, "mail@1"),
        ("mail@1@2.1", '{"version": "2.1"}', "mail@1"),
    ],
)
async def test_kind_without_the_version_is_exact(queue: Connection, kind: str, notes: Any, base: str) -> None:
    assert await queue.fetchval("select agent.base_kind($1, $2)", kind, notes) == base
