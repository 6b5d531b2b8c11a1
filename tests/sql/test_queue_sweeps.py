"""Sweeps and bulk operations work in bounded steps, keep finished steps, and pass over one bad row."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from surelane.calls import Connection
from surelane.jobs import Continuation
from surelane.queue import Queue
from surelane_operator.changes import Changes, ManyChange
from surelane_operator.reads.filters import Filter
from surelane_service.engine import Engine
from tests.sql import queue_steps as do
from tests.sql.queue_steps import HOUR, envelope, pair
from tests.sql.test_plans import read

SLOW = """
create function public.slow() returns trigger language plpgsql as $$ begin perform pg_sleep(0.001); return new; end $$;
create trigger slow before insert on agent.event_hist for each row execute function public.slow();
"""


@pytest.mark.parametrize("how", ["exhausted", "deadline", "age"])
async def test_a_row_that_history_refuses_keeps_no_other_in_the_queue(queue: Connection, how: str) -> None:
    deadline = await queue.fetchval("select agent.clock() + '1 min'") if how == "deadline" else None
    ids = [await do.enqueue(queue, max_attempts=1, deadline=deadline) for _ in range(7)]
    if how == "exhausted":
        await do.claim(queue)
    await queue.execute(
        "insert into agent.event_hist (attempts, vt, claimed, enqueued_at, enqueued_by, retrying, errors"
        ", id, event_ts, event, kind, head, lane, outcome)"
        " select attempts, vt, claimed, enqueued_at, enqueued_by, retrying, errors"
        ", id, event_ts, event, kind, head, lane, 'completed' from agent.event where id = $1",
        ids[2],
    )
    await do.advance(queue, HOUR * 2)
    warnings: list[str] = []
    queue.add_log_listener(lambda _, message: warnings.append(str(message)))
    assert await do.sweep(queue) == 6
    assert await do.live(queue, ids[2]) is not None
    assert any(f"event {ids[2]} cannot be moved to history: SQLSTATE 23505" in each for each in warnings)
    assert await do.sweep(queue) == 0


async def test_a_long_sweep_stops_in_time_and_claims_get_past_exhausted_events(queue: Connection) -> None:
    """Each row takes a millisecond. Only a claim knows its maximum: it has some exhausted events moved."""
    await queue.execute("select agent.enqueue('job') from generate_series(1, 3000)")
    await do.advance(queue, HOUR * 2)
    await queue.execute(SLOW + "set statement_timeout = '60s'")
    try:
        moved = await do.sweep(queue)
    finally:
        await queue.execute("drop trigger slow on agent.event_hist; drop function public.slow()")
    assert 0 < moved < 3000
    assert await do.expire(queue) == 3000 - moved
    await queue.execute("select agent.enqueue('job', _max_attempts => 1) from generate_series(1, 6000)")
    while await do.claim(queue, limit=1000):
        pass
    await do.advance(queue, HOUR)
    identity = await do.enqueue(queue)
    (row,) = await queue.fetch("select id from agent.claim_event()")
    assert row["id"] == identity


async def test_members_that_were_cancelled_end_as_their_worker_is_rescued(queue: Connection) -> None:
    """As heads they would hold up their thread until a sweep."""
    ids = [await do.enqueue(queue, "job", group_key="g") for _ in range(4)]
    await do.claim(queue, "job")
    await queue.execute("select agent.cancel_jobs($1)", ids[1:3])
    await queue.execute("select agent.rescue_events('-1 min')")
    for rest in ids[0], ids[3]:
        (row,) = await do.claim(queue, "job")
        assert row["id"] == rest
        await do.complete(queue, pair(row))
    assert [(await do.ending(queue, each))[0] for each in ids[1:3]] == ["cancelled"] * 2


async def test_many_are_cancelled_and_requeued_in_steps(queue: Connection, other: Connection) -> None:
    operations = Changes(queue)
    await queue.execute(
        "select agent.enqueue('job', _group_key => 'g' || n % 7) from generate_series(1, 1200) as n"
    )
    (first, *_) = await queue.fetch("select id from agent.event order by id")
    running = {row["id"] for row in await do.claim(queue, limit=1)}
    async with other.transaction():
        elsewhere = await do.enqueue(queue, "job")
        await other.execute("select from agent.event where id = $1 for update", elsewhere)
        which = Filter(statuses=["pending", "running"], kinds=["job"])
        answers = await operations.change_all(ManyChange("cancel", which, 5000))
    assert answers.pop(elsewhere) == "busy"
    assert {identity for identity, answer in answers.items() if answer == "running"} == running
    assert sorted(set(answers.values())) == ["cancelled", "running"]
    assert len(answers) == 1200
    assert first["id"] in answers
    moved = await operations.rerun(Filter(statuses=["cancelled"]), 1000)
    assert len(moved) == 1000
    assert await queue.fetchval("select count(*) from agent.event_hist") == 200 - len(running)
    heads = await queue.fetchval("select count(*) from agent.event where head and group_key is not null")
    assert heads == 7


async def test_a_sweep_waits_for_no_locked_continuation(queue: Connection, other: Connection) -> None:
    continuation = await Queue(queue).fan_out([], Continuation("after"))
    await queue.execute("update agent.event set waits_for = 1, vt = 'infinity' where id = $1", continuation)
    async with do.locked(other, continuation):
        await queue.execute("set lock_timeout = '60s'")
        assert await Engine(queue).sweep_events() == 0
    await Engine(queue).sweep_events()
    assert await queue.fetchval("select waits_for from agent.event where id = $1", continuation) == 0


@pytest.mark.parametrize("batch", [True, False])
async def test_what_lies_a_little_over_a_day_ahead_is_one_event(queue: Connection, batch: bool) -> None:
    """The first delivery replaces its timestamp. At the second one it is near enough to be kept."""
    ahead = await queue.fetchval("select agent.from_timestamptz(agent.clock() + '1 day 5 s')::text")
    event = envelope("Ev1", event_ts=ahead)
    identity = await do.insert(queue, event)
    await queue.execute("select agent.delete_event($1)", identity)
    for wait in (timedelta(seconds=10), HOUR, HOUR * 23):
        await do.advance(queue, wait)
        if batch:
            assert await queue.fetchval("select id from agent.insert_events($1)", [event]) == identity
        else:
            assert await do.insert(queue, event) == identity
    assert await queue.fetchval("select count(*) from agent.event") == 0


async def test_deliveries_find_what_was_moved_and_take_no_key_of_a_schedule(queue: Connection) -> None:
    """An event was rescheduled and cancelled before its first attempt. Another delivery finds it."""
    bare = json.dumps({"text": "bare", "event_ts": "1700000000.000100"})
    deliveries = {
        "bare": f"select agent.insert_event('{bare}')",
        "slack": f"select agent.insert_event('{envelope('Ev1')}')",
        "webhook": "select id from agent.fire_trigger('t', '1', '{}')",
    }
    for name, delivery in deliveries.items():
        identity = await queue.fetchval(delivery)
        key = await queue.fetchval("select item_key from agent.event where id = $1", identity)
        assert (
            await queue.fetchval("select agent.reschedule_event($1, agent.clock() + interval '10 days')", key)
            == "rescheduled"
        )
        assert await queue.fetchval("select agent.cancel_event($1)", key) == "cancelled"
        assert await queue.fetchval(delivery) == identity, name
        assert (await do.ending(queue, identity))[0] == "cancelled"
    # Otherwise the firing would find an event from outside as its duplicate and be skipped.
    keys = ["cron:nightly:2024-01-01T00:00:00Z", "webhook:u:1"]
    await queue.fetch("select agent.insert_events($1, null, $2)", [envelope("Ev2"), envelope("Ev3")], keys)
    await do.insert(queue, envelope(keys[0]))
    await queue.execute(
        "select agent.set_cron('nightly', 'tick', '0 0 * * *', '2024-01-01 00:00:00+00');"
        " select agent.fire_cron('nightly', '2024-01-01 00:00:00+00', '{2024-01-01 00:00:00+00}', '2100-01-01')"
    )
    assert await queue.fetchval("select count(*) from agent.event where kind = 'tick'") == 1
    assert not await queue.fetchval("select duplicate from agent.fire_trigger('u', '1', '{}')")


async def test_a_workspace_that_moved_goes_on_after_its_steps_and_with_its_signals(queue: Connection) -> None:
    identity = await do.enqueue(queue)
    (row,) = await do.claim(queue)
    step = "select agent.store_step($1, $2, 'paid', 1, null, '1', '[]', '0s', true)"
    assert await queue.fetchval(step, *pair(row)) == "done"
    await queue.execute("select agent.send_signal($1, 'go', '1', false, 'U1')", identity)
    stored = (
        "select to_jsonb(s) from agent.step as s union all select to_jsonb(s) - 'id' from agent.signal as s"
    )
    before = await queue.fetch(stored)
    await queue.execute("create schema moved")
    for table in [each["name"] for each in await queue.fetch("select name from agent.moving_tables('T1')")]:
        await queue.execute(f"create table moved.{table} as table agent.{table}")
    await queue.execute("delete from agent.event; delete from agent.step; delete from agent.signal")
    await queue.execute("select agent.publish_copies('moved')")
    assert await queue.fetch(stored) == before


async def test_the_runbooks_statement_frees_what_a_jump_of_the_clock_left(queue: Connection) -> None:
    text = (Path(__file__).parents[2] / "docs/runbook.md").read_text()
    statement = text[text.index("select id, agent.reschedule_event(") :].partition("```")[0]
    await queue.execute(
        "select agent.declare_limits('w', '{limited}', '{\"limited\": {\"concurrency\": 1}}')"
    )
    before = await do.enqueue(queue, "job")
    await do.advance(queue, timedelta(days=1))
    (row,) = await do.claim(queue, "job")
    assert await do.fail(queue, pair(row), retry_in=timedelta(minutes=1)) == ["done"]
    ids = {before, await do.insert(queue, envelope("Ev1")), await do.enqueue(queue, "limited")}
    ids |= {await do.enqueue(queue, "job", group_key="g") for _ in range(2)}
    await do.advance(queue, -timedelta(days=1))
    kinds = "job", "slack.app_mention", "limited"
    assert await do.claim(queue, *kinds) == []
    await queue.execute(statement)
    await do.advance(queue, timedelta(seconds=1))
    assert {row["id"] for row in await do.claim(queue, *kinds)} == ids


@pytest.mark.parametrize(
    "call",
    [
        "agent.delete_expired_events()",
        "agent.sweep_events()",
        "agent.claim_event()",
        "agent.longest_waiting(9)",
    ],
)
async def test_a_kind_without_events_costs_no_probe_of_each_lane(own_queue: Connection, call: str) -> None:
    await own_queue.execute("insert into agent.kind select 'idle ' || n from generate_series(1, 5000) as n")
    await do.enqueue(own_queue)
    pages, _ = await read(own_queue, f"select * from {call}")
    assert pages < 2_500, "half a page for each kind: in tests, a call of the clock for each reads one"


EXPIRING = {
    "select agent.use_id('new', now() + '1 min')": (
        "used_id (id, expires_at) select n::text, now() + n * interval '1 min'"
    ),
    "select agent.await_installation(1, false, 'T1', now())": (
        "install_wait (event_id, owner_id, enterprise_wide, until)"
        " select n, 'T1', false, now() + n * interval '1 min'"
    ),
    "select agent.read_usage('T1', 'U1')": (
        "model_usage select date '2020-01-01' + n, 'T1', 'U1', 'm', 1, 1, 1, 1, ''"
    ),
    "select agent.release_unknown('w1', '{}', '{}')": (
        "event (event_ts, kind, event, head, lane, attempts, vt)"
        " select now(), 'mail', '{}', true, 1, 1, now() - n * interval '1 min'"
    ),
}


@pytest.mark.parametrize("call", EXPIRING)
async def test_what_expired_is_found_by_its_index(own_queue: Connection, call: str) -> None:
    """The clock is volatile: a condition that calls it looks at each row."""
    await own_queue.execute(f"insert into agent.{EXPIRING[call]} from generate_series(1, 5000) as n")
    pages, rows = await read(own_queue, call)
    assert pages < 500
    assert rows < 100
