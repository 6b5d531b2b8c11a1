"""An event that continues as a new one ends, and its successor takes its place, in one transaction."""

import json
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from surelane.jobs import Continuation, Job
from surelane.queue import Queue
from surelane_service.engine import Engine
from tests.sql.queue_steps import Pair, claim, complete, ending, enqueue, event_of, heads, live, pair, release


async def continue_anew(queue: Connection, item: Pair, payload: dict[str, Any]) -> str:
    """Settle a claim so that the event continues as a new one; return the answer."""
    following = {"children": [], "continuation": {"kind": "job", "payload": payload}}
    argument = json.dumps(following | {"result": None, "anew": True})
    (answer,) = await Engine(queue).settle([(*item, "fan_out", argument)])
    return answer.value


async def test_the_successor_has_the_events_fields_and_another_payload(queue: Connection) -> None:
    trace = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
    job = {"kind": "job", "payload": {"n": 1}, "item_key": "k", "group_key": "g", "priority": 2}
    job |= {"max_attempts": 7, "limit_key": "l", "traceparent": trace}
    first = await queue.fetchval("select id from agent.enqueue_jobs($1)", json.dumps([job]))
    (row,) = await claim(queue)
    await Engine(queue).store_step(*pair(row), "s", 1, None, "1", "[]", timedelta(0))
    assert await continue_anew(queue, pair(row), {"n": 2}) == "done"
    assert await ending(queue, first) == ("completed", None)
    (again,) = await claim(queue)
    assert json.loads(again["event"]) == {"n": 2}
    fields = ("kind", "item_key", "group_key", "traceparent", "max_attempts")
    assert [again[name] for name in fields] == [row[name] for name in fields]
    assert (again["item_key"], again["attempts"]) == ("k", 1)
    assert await queue.fetchval("select priority from agent.live_job where id = $1", again["id"]) == 2
    assert not await queue.fetch("select * from agent.stored_steps($1)", again["id"])
    noted = "select changes from agent.job where id = $1"
    changes = [await queue.fetchval(noted, identity) for identity in (first, again["id"])]
    told = [
        [(change["action"], change["id"]) for change in json.loads(each) if "action" in change]
        for each in changes
    ]
    assert told == [[("continued as", again["id"])], [("continuation of", first)]]
    assert [json.loads(each)[0].get("limit_key") for each in changes[1:]] == ["given:l"]


async def test_a_successor_comes_before_what_waits_in_its_group_also_unclaimed(queue: Connection) -> None:
    ids = [await enqueue(queue, "job", group_key="g") for _ in range(3)]
    rows = await claim(queue)
    assert [row["id"] for row in rows] == ids
    assert await continue_anew(queue, pair(rows[0]), {}) == "done"
    # Its worker releases the rest of the group that it holds.
    assert await release(queue, *map(pair, rows[1:])) == ["done", "done"]
    late = await enqueue(queue, "job", group_key="g")
    again = await claim(queue)
    assert [row["id"] for row in again][1:] == [*ids[1:], late]
    assert await heads(queue, "g") == [again[0]["id"]]
    (change, *_) = json.loads((await event_of(queue, again[0]["id"]))["changes"])
    assert change["action"] == "continuation of"
    await queue.execute("delete from agent.event")
    await enqueue(queue, "job", group_key="g")
    (row,) = await claim(queue)
    second = await enqueue(queue, "job", group_key="g")
    assert await continue_anew(queue, pair(row), {}) == "done"
    ids = [row["id"] for row in await claim(queue)]
    assert ids[1:] == [second]
    assert await heads(queue, "g") == ids[:1]


async def test_a_lost_claim_begins_no_successor_and_a_second_settle_is_stale(queue: Connection) -> None:
    first = await enqueue(queue, "job", item_key="k")
    (row,) = await claim(queue)
    assert await continue_anew(queue, (row["id"], row["claim"] + 1), {}) == "stale"
    assert await live(queue, first) is not None
    assert [await continue_anew(queue, pair(row), {}) for _ in range(2)] == ["done", "stale"]
    assert await queue.fetchval("select count(*) from agent.event") == 1


async def test_who_stores_the_key_meanwhile_finds_a_successor(queue: Connection, other: Connection) -> None:
    await enqueue(queue, "job", item_key="k")
    (row,) = await claim(queue)
    async with queue.transaction():
        assert await continue_anew(queue, pair(row), {"n": 2}) == "done"
        await other.execute("set lock_timeout = '100ms'")
        with pytest.raises(asyncpg.LockNotAvailableError):
            await enqueue(other, "job", item_key="k")
    found = await enqueue(other, "job", item_key="k")
    assert found == await queue.fetchval("select id from agent.event")


async def test_a_workflow_waits_for_the_successor_of_its_child(queue: Connection) -> None:
    await Queue(queue).fan_out([Job("job")], Continuation("then"))
    (row,) = await claim(queue)
    assert await continue_anew(queue, pair(row), {}) == "done"
    assert await claim(queue, "then") == []
    (again,) = await claim(queue)
    await complete(queue, pair(again))
    assert len(await claim(queue, "then")) == 1
