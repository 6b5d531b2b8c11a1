"""Each change of an operator is kept: who, when, what, and what came of it. An id of the page is used once."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from surelane.calls import Connection
from surelane.errors import DatabaseUnavailable, InvalidInput
from surelane_operator import changes
from surelane_operator.audit import acting_as
from surelane_operator.changes import Changes, ManyChange
from surelane_operator.reads.filters import LIVE, Filter, read_cursor
from surelane_service.cron import Cron
from tests.sql.conftest import Connect
from tests.sql.queue_steps import advance, claim, ending, enqueue, live, locked, waits_for_lock


@pytest.fixture
def operator(queue: Connection) -> Changes:
    return Changes(queue)


async def test_an_action_is_kept_with_who_what_and_the_result(queue: Connection, operator: Changes) -> None:
    identity = await enqueue(queue)
    with acting_as("ada", "page"):
        assert await operator.cancel(identity, reason="asked for") == "cancelled"
    (kept,) = await operator.audit.list_actions(target=f"event {identity}")
    assert (kept["who"], kept["via"], kept["action"]) == ("ada", "page", "cancel")
    assert kept["detail"] == {"children": False, "reason": "asked for"}
    assert kept["result"] == {"answer": "cancelled"}
    assert kept["finished_at"] is not None
    assert await ending(queue, identity) == ("cancelled", "cancelled by ada: asked for")
    # A program that names no person acts as its role. A refused change changes nothing.
    await operator.pause("job")
    with pytest.raises(InvalidInput):
        await operator.set_limit("job", concurrency=-1)
    refused, kept, _ = await operator.audit.list_actions()
    assert (kept["who"], kept["via"], kept["role"]) == ("surelane", "program", "surelane")
    assert (refused["action"], refused["result"]) == ("set limit", {"error": "InvalidInput"})
    assert await operator.list_limits() == []


async def test_the_events_and_kinds_name_the_person(queue: Connection, operator: Changes) -> None:
    identity = await enqueue(queue, kind="job")
    await operator.cancel(identity)
    with acting_as("ada", "page"):
        await operator.rerun([identity])
        await operator.pause("job")
        await operator.set_limit("job", concurrency=3)
        await operator.set_cron("daily", Cron("0 9 * * *"), kind="job", payload={})
    job: Any = await operator.get(identity)
    assert job["changes"][-1]["by"] == "ada"
    assert await queue.fetchval("select paused_by from agent.kind where kind = 'job'") == "ada"
    assert [limit["set_by"] for limit in await operator.list_limits()] == ["ada"]
    assert [cron["updated_by"] for cron in await operator.list_cron()] == ["ada"]
    # The name is gone with the transaction.
    await queue.execute("select agent.pause_kind('other')")
    role = await queue.fetchval("select session_user")
    assert await queue.fetchval("select paused_by from agent.kind where kind = 'other'") == role


async def test_a_change_to_many_shows_progress_and_each_answer(queue: Connection, operator: Changes) -> None:
    await queue.execute("select agent.enqueue('job') from generate_series(1, 1200)")
    change = ManyChange("expire", Filter(kinds=["job"]), 1100, "stale")
    action = await operator.begin_change(change)
    assert (await operator.audit.read(action) or {})["finished_at"] is None
    with acting_as("ada", "page"):
        answers = await operator.change_all(change, action)
    assert list(answers.values()) == ["expired"] * 1100
    assert await operator.count(Filter(kinds=["job"], statuses=["pending"]), 5000) == 100
    (kept,) = await operator.audit.list_actions()
    assert kept["detail"] == {"filter": {"kinds": ["job"]}, "limit": 1100, "reason": "stale"}
    assert kept["result"] == {"expired": 1100}
    assert kept["finished_at"] is not None


async def test_a_change_that_looks_for_its_events_is_bounded_and_goes_on_where_it_ended(
    queue: Connection, operator: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "MOST_LOOKED", 2000)
    await queue.execute(
        "select agent.enqueue('job', jsonb_build_object('team_id', 'T' || n % 100)) from generate_series(1, 3000) as n"
    )
    which = Filter(LIVE, ["job"], workspace="T7")
    assert len(await operator.change_all(ManyChange("cancel", which, 1000))) == 20
    (first,) = await operator.audit.list_actions()
    asked = {"statuses": list(LIVE), "kinds": ["job"], "workspace": "T7"}
    assert first["detail"] == {"filter": asked, "limit": 1000}
    place = first["result"].pop("next")
    assert first["result"] == {"cancelled": 20, "looked": 2000}
    rest = await operator.change_all(ManyChange("cancel", which, 1000, after=read_cursor(place)))
    assert len(rest) == 10
    second, _ = await operator.audit.list_actions()
    assert second["result"] == {"cancelled": 10, "looked": 1000}
    assert second["detail"]["after"] == place
    assert await operator.count(Filter(LIVE), 5000) == 2970


async def test_steps_stay_done_if_one_fails(queue: Connection, operator: Changes, other: Connection) -> None:
    await queue.execute("select agent.enqueue('job') from generate_series(1, 600)")
    ids = await queue.fetchval("select array_agg(id order by id) from agent.event")
    await queue.execute(
        "create function public.fill_up() returns trigger language plpgsql as $$ begin"
        " perform pg_advisory_xact_lock(1); raise disk_full; end $$;"
        "create trigger full_volume before insert on agent.event_hist for each row"
        f" when (new.id = {ids[-1]}) execute function public.fill_up()"
    )
    action = await operator.begin_change(ManyChange("cancel", ids, 1000))
    await other.execute("select pg_advisory_lock(1)")
    changing = asyncio.create_task(operator.change_all(ManyChange("cancel", ids, 1000), action))
    async with asyncio.timeout(60):
        while (kept := await Changes(other).audit.read(action)) is None or not kept["result"]:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.01)
    assert kept["result"] == {"cancelled": 500}
    await other.execute("select pg_advisory_unlock(1)")
    with pytest.raises(DatabaseUnavailable):
        await changing
    (kept,) = await operator.audit.list_actions()
    assert kept["result"] == {"cancelled": 500, "error": "DatabaseUnavailable"}
    assert await operator.count(Filter(statuses=["pending"]), 1000) == 100
    await queue.execute("drop function public.fill_up cascade")


async def test_only_what_waits_is_expired(queue: Connection, operator: Changes, connect: Connect) -> None:
    running = await enqueue(queue)
    await claim(queue)
    waiting, other = await enqueue(queue), await connect()
    async with locked(other, waiting):
        assert await operator.change("expire", [waiting]) == {waiting: "busy"}
    answers = await operator.change("expire", [running, waiting, 999_999_999], reason="late")
    assert answers == {running: "running", waiting: "expired"}
    assert await live(queue, running) is not None
    assert await ending(queue, waiting) == ("expired", "expired by surelane: late")


async def test_a_schedule_is_paused_resumed_and_run_at_once(queue: Connection, operator: Changes) -> None:
    await operator.set_cron("daily", Cron("0 9 * * *"), kind="job", payload={"a": 1})
    assert await operator.pause_cron("daily")
    await advance(queue, timedelta(days=3))
    identity = await operator.run_cron("daily")
    assert identity is not None
    assert await operator.run_cron("daily") is not None
    job: Any = await operator.get(identity)
    assert (job["kind"], job["payload"]["a"], job["payload"]["cron"]) == ("job", 1, "daily")
    assert await operator.resume_cron("daily")
    (cron,) = await operator.list_cron()
    assert not cron["paused"]
    assert cron["next_at"] > datetime.now(UTC)
    for change in (operator.pause_cron, operator.resume_cron, operator.run_cron):
        assert not await change("none")


async def test_actions_come_by_page_and_target_and_old_ones_go(queue: Connection, operator: Changes) -> None:
    for kind in ("a", "b", "a"):
        await operator.pause(kind)
    page = await operator.audit.list_actions(2)
    rest = await operator.audit.list_actions(2, before=page[-1]["id"])
    assert [each["target"] for each in (*page, *rest)] == ["kind a", "kind b", "kind a"]
    assert len(await operator.audit.list_actions(target="kind a")) == 2
    await queue.execute("update agent.operator_action set at = at - interval '401 days'")
    await operator.pause("new")
    assert [each["target"] for each in await operator.audit.list_actions()] == ["kind new"]


@pytest.mark.parametrize("matching", [0, 1000, 1001])
async def test_a_count_is_bounded(queue: Connection, operator: Changes, matching: int) -> None:
    await queue.execute("select agent.enqueue('job') from generate_series(1, $1::int)", matching)
    await operator.change_all(ManyChange("cancel", Filter(), matching // 2))
    for most in (10_000, 1001, 1000, 700):
        assert await operator.count(Filter(), most) == min(matching, most)


USE = "select agent.use_id($1, now() + interval '10 minutes')"
LOOK = "select agent.use_id($1, null)"


async def test_an_id_is_used_once_and_looking_at_it_does_not_use_it(queue: Connection) -> None:
    assert [await queue.fetchval(LOOK, "a") for _ in range(2)] == [True, True]
    assert [await queue.fetchval(USE, "a") for _ in range(2)] == [True, False]
    assert not await queue.fetchval(LOOK, "a")
    assert await queue.fetchval(LOOK, "b")
    use = "select agent.use_id($1, now() - $2::text::interval)"
    for identity, ago in (("old", "2 hours"), ("late", "30 minutes"), ("new", "-1 minute")):
        assert await queue.fetchval(use, identity, ago)
    left = await queue.fetchval("select array_agg(id order by id) from agent.used_id")
    assert left == ["a", "late", "new"], "those that expired long ago are forgotten"


async def test_one_of_two_processes_is_first(queue: Connection, connect: Connect) -> None:
    first, second = await connect(), await connect()
    async with first.transaction():
        assert await first.fetchval(USE, "a")
        waiting = asyncio.create_task(second.fetchval(USE, "a"))
        await waits_for_lock(queue, second)
    assert not await waiting
