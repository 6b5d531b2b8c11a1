"""Named schedules and webhooks fire once, for any number of workers, and the queue knows its workers."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from surelane.calls import Connection
from surelane.errors import InvalidInput
from surelane_service.engine import Engine
from surelane_service.intake import Intake
from tests.sql.conftest import Connect
from tests.sql.queue_steps import HOUR, all_done, claim, complete, event_of, only_row, pair, release


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
    fires = [Engine(worker).fire_cron("nightly", due, [due], following) for worker in workers]
    fired = await all_done(*fires)
    assert sorted(fired) == [0, 0, 0, 0, 1]
    (row,) = await claim(queue, "tick")
    assert json.loads(row["event"]) == {"n": 1, "cron": "nightly", "scheduled_at": due.isoformat()}
    assert row["item_key"] == f"cron:nightly:{due.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    times = [following + timedelta(minutes=nth) for nth in range(3)]
    assert await Engine(queue).fire_cron("nightly", following, times, times[-1] + HOUR) == 3
    assert len(await claim(queue, "tick")) == 3, "none is lost while the last job waits"
    due = await set_due(queue, "c", overlap="skip", jitter=HOUR)
    # A service of the previous release keeps newer settings.
    await queue.execute("select agent.set_cron('c', 't', '* * * * *', $1, '{}', 'UTC', 'one', null, 1)", due)
    row = await only_row(queue, "select overlap, jitter from agent.cron where name = 'c'")
    assert tuple(row) == ("skip", HOUR)


async def fire(queue: Connection, name: str, times: int = 1) -> int:
    due = await queue.fetchval("select next_at from agent.cron where name = $1", name)
    at = [due + nth * HOUR for nth in range(times)]
    return await Engine(queue).fire_cron(name, due, at, due + times * HOUR)


async def outcomes(queue: Connection) -> list[tuple[str, str]]:
    rows = await queue.fetch("select status, reason from agent.job order by id")
    return [(row["status"], row["reason"] or "") for row in rows]


async def test_a_firing_is_skipped_while_an_earlier_job_is_live_or_waits_its_turn(queue: Connection) -> None:
    await set_due(queue, "c", overlap="skip")
    assert [await fire(queue, "c", 2), await fire(queue, "c")] == [1, 0]
    (first,) = await claim(queue, "tick")
    assert await fire(queue, "c") == 0
    assert await queue.fetchval("select agent.run_cron('c')") == first["id"]
    await complete(queue, pair(first))
    assert await fire(queue, "c") == 1
    assert len(await claim(queue, "tick")) == 1
    # Jobs of one schedule are a group: its worker handles them in order, and no other gets one meanwhile.
    await set_due(queue, "q", overlap="queue")
    await set_due(queue, "other", overlap="queue")
    assert [await fire(queue, "q"), await fire(queue, "other")] == [1, 1]
    first, other = await claim(queue, "tick")
    assert await fire(queue, "q", 2) == 2
    assert await claim(queue, "tick", worker="w2") == []
    await complete(queue, pair(first), pair(other))
    times = [json.loads(row["event"])["scheduled_at"] for row in await claim(queue, "tick", worker="w2")]
    assert len(times) == 2
    assert times == sorted(times)


async def test_a_firing_replaces_the_job_that_waits_and_stops_the_one_that_runs(queue: Connection) -> None:
    await set_due(queue, "c", overlap="replace")
    assert [await fire(queue, "c", 3), await fire(queue, "c")] == [1, 1]
    (ended, waiting) = await outcomes(queue)
    assert ended[0] == "cancelled"
    assert "replaced by the firing" in ended[1]
    assert waiting[0] == "pending"
    (running,) = await claim(queue, "tick")
    assert await fire(queue, "c") == 1
    assert (await event_of(queue, running["id"]))["cancelled_by"] == "cron:c"
    assert await claim(queue, "tick") == []
    assert await release(queue, pair(running)) == ["done"]
    assert [status for status, _ in await outcomes(queue)] == ["cancelled", "cancelled", "pending"]
    assert len(await claim(queue, "tick")) == 1


@pytest.mark.parametrize("overlap", ["allow", "skip", "queue", "replace"])
async def test_a_paused_schedule_neither_stores_nor_stops_a_job(queue: Connection, overlap: Any) -> None:
    due = await set_due(queue, "c", overlap=overlap)
    assert await fire(queue, "c") == 1
    (running,) = await claim(queue, "tick")
    await queue.execute("select agent.pause_cron('c', true, null)")
    assert await fire(queue, "c") == 0
    assert await complete(queue, pair(running)) == ["done"]
    await queue.execute("select agent.pause_cron('c', false, $1)", due + 2 * HOUR)
    assert await fire(queue, "c") == 1
    assert len(await claim(queue, "tick")) == 1


async def test_a_schedule_that_makes_no_sense_is_refused(queue: Connection) -> None:
    wrong: list[Any] = [{"catch_up": 0}, {"catch_up": 1001}, {"overlap": "stop"}, {"jitter": 48 * HOUR}]
    for given in wrong:
        with pytest.raises(InvalidInput):
            await set_due(queue, "c", **given)


async def test_paused_and_deleted_schedules_are_not_due(queue: Connection) -> None:
    await set_due(queue, "paused", paused=True)
    await set_due(queue, "gone")
    assert [due.name for due in await Engine(queue).due_cron()] == ["gone"]
    assert [await Engine(queue).delete_cron("gone") for _ in range(2)] == [True, False]
    assert await Engine(queue).due_cron() == []
    assert await Engine(queue).next_cron() is None
    await set_due(queue, "due")
    await Engine(queue).set_cron("ahead", kind="t", schedule="* * * * *", next_at=await now(queue) + HOUR)
    seconds = await Engine(queue).next_cron()
    assert 3540 < (seconds or 0) <= 3600, "by the database's clock"


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


@pytest.mark.parametrize("webhook_id", ["msg_1", "m" * 250])
async def test_a_webhook_is_one_event_while_it_may_come_again(queue: Connection, webhook_id: str) -> None:
    async def fire_again() -> None:
        again = await Intake(queue).fire_trigger("git", webhook_id, '{"n": 1}')
        assert (again.id, again.duplicate) == (first.id, True)

    first = await Intake(queue).fire_trigger("git", webhook_id, '{"n": 1}')
    await fire_again()
    await complete(queue, pair((await claim(queue, "trigger-fire"))[0]))
    await fire_again()
    await queue.execute("update agent.test_clock set shift = '2 days 12 hours'")
    await fire_again()
    others = [await Intake(queue).fire_trigger(*each, "1") for each in (("git", "m"), ("hub", webhook_id))]
    others += [await Intake(queue).fire_trigger(*each, "1") for each in (("a", "b:c"), ("a:b", "c"))]
    others += [await Intake(queue).fire_trigger(*each, "1") for each in (("a", ":b:c"), ("a:", "b:c"))]
    assert not any(other.duplicate for other in others)
