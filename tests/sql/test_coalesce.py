"""The first event of a run stands for its followers: they wait behind it, and end with it."""

import json
from datetime import timedelta
from typing import Any

import pytest

from surelane.calls import Connection
from surelane.jobs import Continuation, Job
from surelane_service.engine import Engine, Settled
from tests.sql import queue_steps as do
from tests.sql.conftest import Connect
from tests.sql.queue_steps import TEN_MINUTES, Row, pair

GROUP = "T:C:1"


async def burst(queue: Connection, count: int = 3) -> list[Row]:
    """Store events of one group and claim them, the head first."""
    for _ in range(count):
        await do.enqueue(queue, group_key=GROUP)
    return sorted(await do.claim(queue), key=lambda row: row["id"])


async def put_back(queue: Connection, row: Row, pause: float) -> None:
    argument = json.dumps({"pause": pause, "blocking": True, "begun": False})
    assert await Engine(queue).settle([(*pair(row), "snooze", argument)]) == [Settled.DONE]


async def coalesce(
    queue: Connection, rows: list[Row], how: str = "complete", argument: Any = None
) -> Settled:
    given = {"outcome": how, "argument": argument, "followers": [pair(row) for row in rows[1:]]}
    (answer,) = await Engine(queue).settle([(*pair(rows[0]), "coalesce", json.dumps(given))])
    return answer


async def test_first_run_decides_and_no_event_that_began_its_own_follows(queue: Connection) -> None:
    engine, (head, follower, late) = Engine(queue), await burst(queue)
    assert await engine.gather(*pair(head), [follower["id"]]) == ("done", [follower["id"]])
    assert await engine.gather(*pair(head), [follower["id"], late["id"]]) == ("done", [follower["id"]])
    assert await engine.gather(head["id"], 7, []) == ("stale", [])
    assert await engine.read_steps(head["id"]) == []
    (told,) = json.loads(await queue.fetchval("select agent.list_steps($1)", head["id"]))
    assert (told["sort"], told["events"]) == ("coalesced", [follower["id"]])
    await queue.execute("delete from agent.event")
    engine, (head, begun, plain) = Engine(queue), await burst(queue)
    await engine.store_step(*pair(begun), "a", 1, None, "1", "[]", timedelta())
    assert await engine.gather(*pair(head), [begun["id"], plain["id"]]) == ("done", [plain["id"]])
    assert await engine.gather(*pair(begun), [plain["id"]]) == ("done", [])


async def test_followers_come_again_after_a_lapse(queue: Connection) -> None:
    engine, (head, follower) = Engine(queue), await burst(queue, 2)
    assert await engine.gather(*pair(head), [follower["id"]]) == ("done", [follower["id"]])
    await do.advance(queue, 2 * TEN_MINUTES)
    (alone,) = await do.claim(queue)
    assert (alone["id"], alone["attempts"]) == (head["id"], 2)
    assert await engine.gather(*pair(alone), []) == ("alone", [])
    await put_back(queue, alone, 0)
    rows = sorted(await do.claim(queue), key=lambda row: row["id"])
    assert [(row["id"], row["attempts"]) for row in rows] == [(head["id"], 2), (follower["id"], 1)]
    assert await engine.gather(*pair(rows[0]), [follower["id"]]) == ("done", [follower["id"]])
    assert await coalesce(queue, rows) is Settled.DONE
    await burst(queue, 1)
    await do.advance(queue, 2 * TEN_MINUTES)
    (again,) = await do.claim(queue)
    assert await engine.gather(*pair(again), []) == ("done", []), "nothing was behind it"


async def test_lost_follower_is_passed_over_and_a_locked_is_busy(queue: Connection, connect: Connect) -> None:
    rows = await burst(queue)
    await queue.execute("select agent.delete_event($1)", rows[1]["id"])
    async with do.locked(await connect(), rows[2]["id"]):
        assert await coalesce(queue, rows) is Settled.BUSY
        assert await do.live(queue, rows[0]["id"]) is not None
    assert await coalesce(queue, rows) is Settled.DONE
    assert await do.ending(queue, rows[1]["id"]) == ("completed", None)
    assert await do.ending(queue, rows[2]["id"]) == ("completed", f"coalesced into {rows[0]['id']}")


async def test_followers_end_with_the_head_and_say_so_also_to_continuations(queue: Connection) -> None:
    await do.enqueue(queue, "parent")
    (parent,) = await do.claim(queue, "parent")
    children = [Job("job", {}, group_key=GROUP) for _ in range(2)]
    assert await do.continue_with(queue, pair(parent), children, Continuation("then", {})) == "done"
    rows = sorted(await do.claim(queue), key=lambda row: row["id"])
    assert await coalesce(queue, rows) is Settled.DONE
    (then,) = await do.claim(queue, "then")
    children_told = await queue.fetch("select status, reason from agent.children($1)", then["id"])
    told = f"coalesced into {rows[0]['id']}"
    assert [tuple(row) for row in children_told] == [("completed", None), ("completed", told)]
    rows = await burst(queue)
    behind = await do.enqueue(queue, group_key=GROUP)
    assert await coalesce(queue, rows, argument={"ok": 1}) is Settled.DONE
    head = await do.history_of(queue, rows[0]["id"])
    assert (head["outcome"], head["reason"], json.loads(head["result"])) == ("completed", None, {"ok": 1})
    told = f"coalesced into {rows[0]['id']}"
    assert [await do.ending(queue, row["id"]) for row in rows[1:]] == [("completed", told)] * 2
    detail = await queue.fetchval("select detail from agent.why_waiting($1)", rows[1]["id"])
    assert detail.startswith(f"ended as completed: {told} at ")
    assert [row["id"] for row in await do.claim(queue)] == [behind]
    assert await coalesce(queue, rows) is Settled.STALE


@pytest.mark.parametrize("outcome", ["suspend", "await"])
async def test_followers_go_on_if_their_head_was_cancelled(queue: Connection, outcome: str) -> None:
    rows = await burst(queue)
    await queue.execute("select agent.cancel_job($1)", rows[0]["id"])
    argument: dict[str, object] = {"waits": []} if outcome == "suspend" else {"until": "2100-01-01T00:00:00Z"}
    assert await coalesce(queue, rows, outcome, argument) is Settled.DONE
    assert await do.ending(queue, rows[0]["id"]) == ("cancelled", "cancelled while running")
    assert {row["id"]: row["attempts"] for row in await do.claim(queue)} == {row["id"]: 1 for row in rows[1:]}


@pytest.mark.parametrize("rate", [1, 101])
async def test_event_that_is_put_back_uses_no_place_of_a_rate(queue: Connection, rate: int) -> None:
    declared = json.dumps({"job": {"rate": rate, "period": 60, "grouped": True}})
    await queue.fetchval("select agent.declare_limits('w', array['job'], $1)", declared)
    (first,) = await burst(queue, 1)
    await put_back(queue, first, 3600)
    others = [await do.enqueue(queue) for _ in range(rate + 1)]
    assert sorted(row["id"] for row in await do.claim(queue, limit=rate + 1)) == others[:-1]
