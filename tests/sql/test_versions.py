"""A run that its worker lacks the version for goes to workers that have it, and keeps its place."""

import json
from typing import Any

import pytest

from surelane.calls import Connection
from surelane_service.engine import Engine
from tests.sql.conftest import Connect
from tests.sql.queue_steps import Pair, claim, complete, ending, enqueue, locked, pair


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
