"""Named schedules and webhooks fire once, for any number of workers, and the queue knows its workers."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from surelane_service.engine import Engine
from surelane_service.intake import Intake
from tests.sql.conftest import Connect
from tests.sql.queue_steps import all_done, claim, complete, enqueue, pair

HOUR = timedelta(hours=1)


async def now(queue: Connection) -> datetime:
    moment: datetime = await queue.fetchval("select agent.clock()")
    return moment


async def set_due(queue: Connection, name: str, **fields: Any) -> datetime:
    """Make a schedule that is due; return the time."""
    due = (await now(queue)).replace(microsecond=0) - timedelta(seconds=2)
    chosen = {"kind": "tick", "schedule": "* * * * *", **fields}
    await Engine(queue).set_cron(name, next_at=due, **chosen)
    return due


async def test_of_all_workers_that_try_one_fires(queue: Connection, connect: Connect) -> None:
    due = await set_due(queue, "nightly", payload={"n": 1})
    workers = [await connect() for _ in range(5)]
    following = due + timedelta(minutes=1)
    fired = await all_done(
        *(Engine(worker).fire_cron("nightly", due, [due], following) for worker in workers)
    )
    assert sorted(fired) == [0, 0, 0, 0, 1]
    (row,) = await claim(queue, "tick")
    assert json.loads(row["event"]) == {
        "n": 1,
        "cron": "nightly",
        "scheduled_at": due.isoformat(),
    }
    assert row["item_key"] == f"cron:nightly:{due.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


async def test_a_schedule_that_fires_while_its_last_job_waits_does_not_lose_one(queue: Connection) -> None:
    due = await set_due(queue, "often")
    times = [due, due + timedelta(minutes=1), due + timedelta(minutes=2)]
    assert await Engine(queue).fire_cron("often", due, times, times[-1] + timedelta(minutes=1)) == 3
    assert len(await claim(queue, "tick")) == 3


async def test_paused_and_deleted_schedules_are_not_due(queue: Connection) -> None:
    await set_due(queue, "paused", paused=True)
    await set_due(queue, "gone")
    assert [due.name for due in await Engine(queue).due_cron()] == ["gone"]
    assert [await Engine(queue).delete_cron("gone") for _ in range(2)] == [True, False]
    assert await Engine(queue).due_cron() == []
    assert await Engine(queue).next_cron() is None


async def test_declaring_a_schedule_again_keeps_its_firing_and_its_pause(queue: Connection) -> None:
    await Engine(queue).set_cron("c", kind="tick", schedule="0 3 * * *")
    at = await queue.fetchval("select next_at from agent.cron")
    await Engine(queue).set_cron("c", kind="tock", schedule="0 3 * * *", next_at=at + HOUR, paused=None)
    assert await queue.fetchval("select next_at from agent.cron where kind = 'tock' and not paused") == at
    await Engine(queue).set_cron("c", kind="tick", schedule="0 3 * * *", next_at=at + HOUR, paused=True)
    await Engine(queue).set_cron("c", kind="tick", schedule="0 3 * * *", next_at=at + 2 * HOUR, paused=None)
    assert await queue.fetchval("select next_at from agent.cron where paused") == at + HOUR
    await Engine(queue).set_cron("c", kind="tick", schedule="0 4 * * *", next_at=at + 3 * HOUR, paused=False)
    assert await queue.fetchval("select next_at from agent.cron where not paused") == at + 3 * HOUR


async def test_the_next_firing_is_told_by_the_databases_clock(queue: Connection) -> None:
    await set_due(queue, "due")
    await Engine(queue).set_cron("ahead", kind="t", schedule="* * * * *", next_at=await now(queue) + HOUR)
    seconds = await Engine(queue).next_cron()
    assert seconds is not None
    assert 3590 < seconds <= 3600


@pytest.mark.parametrize("payload", ["[]", "1", "null"])
async def test_a_schedules_payload_is_an_object(queue: Connection, payload: str) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError, match="JSON object"):
        await queue.execute("select agent.set_cron('c', 'k', '* * * * *', now(), $1)", payload)


async def test_a_webhook_is_one_event_while_its_sender_may_try_again(queue: Connection) -> None:
    first = await Intake(queue).fire_trigger("git", "msg_1", '{"n": 1}')
    assert await Intake(queue).fire_trigger("git", "msg_1", '{"n": 1}') == type(first)(first.id, True)
    await complete(queue, pair((await claim(queue, "trigger-fire"))[0]))
    assert await Intake(queue).fire_trigger("git", "msg_1", '{"n": 1}') == type(first)(first.id, True)
    await queue.execute("update agent.test_clock set shift = '2 days 12 hours'")
    assert await Intake(queue).fire_trigger("git", "msg_1", '{"n": 1}') == type(first)(first.id, True)
    others = [
        await Intake(queue).fire_trigger("git", "msg_2", "1"),
        await Intake(queue).fire_trigger("hub", "msg_1", "1"),
    ]
    assert not any(other.duplicate for other in others)


async def test_workers_announce_themselves_and_retire(queue: Connection) -> None:
    identity = await enqueue(queue, "tick")
    why = "select reason from agent.why_waiting($1)"
    assert await queue.fetchval(why, identity) == "no_worker"
    await Engine(queue).announce_worker("w1", ["tick"], "0.1.0")
    assert await queue.fetchval(why, identity) == "due"
    await Engine(queue).retire_worker("w1")
    assert await queue.fetchval(why, identity) == "no_worker"
