"""History keeps all of an event; old history is dropped in bounded steps, and never waits for anybody."""

import asyncio
import re
from contextlib import suppress
from datetime import timedelta

import asyncpg
import pytest

from surelane.calls import Connection
from surelane_operator.reads.timeline import ListedEvent
from surelane_service.history import COLUMNS, INTERNAL
from tests.sql import queue_steps as do
from tests.sql.conftest import Connect
from tests.sql.queue_steps import claim, drop_history, enqueue, envelope, finish, insert, live, only_row, pair
from tests.sql.test_queue_foreign_locks import stays_open

HANG_ON = (
    (
        "agent.step (event_id, name, nth, sort, attempt, started_at, event_ts)"
        " select $1, 'a', 1, 'step', 1, now(),"
    ),
    "agent.signal (event_id, name, sent_at) select $1, 'go',",
)
LEFT = "select (select count(*) from agent.step) + (select count(*) from agent.signal)"


async def ended(queue: Connection) -> list[int]:
    return [row["id"] for row in await queue.fetch("select id from agent.event_hist order by id")]


async def test_old_history_goes_with_its_steps_and_signals_and_the_rest_stays(queue: Connection) -> None:
    old, young = await finish(queue, "Ev1", 200), await finish(queue, "Ev2", 1)
    long_ago = "select agent.from_timestamptz(agent.clock() - interval '300 days')::text"
    waiting = await insert(queue, envelope("Ev3", event_ts=await queue.fetchval(long_ago)))
    for identity in (old, young, waiting):
        for thing in HANG_ON:
            await queue.execute(f"insert into {thing} event_ts from agent.job where id = $1", identity)
    dropped, blocked = await drop_history(queue)
    assert (dropped >= 1, blocked) == (True, False)
    assert await ended(queue) == [young]
    assert await live(queue, waiting) is not None
    assert await queue.fetchval(LEFT) == 4
    assert await drop_history(queue) == (0, False)


async def test_it_goes_in_bounded_steps_and_untaken_signals_in_their_time(queue: Connection) -> None:
    for number in range(7):
        await finish(queue, f"Ev{number}", 100 + 10 * number)
    rows = await only_row(queue, "select * from agent.drop_history('90 days', 0, 3)")
    assert rows["dropped"] <= 3
    assert rows["next"] is not None
    assert await queue.fetchval("select not exists (select from agent.retention)")
    await drop_history(queue, limit=3)
    assert await ended(queue) == []
    assert await queue.fetchval("select older_than = '90 days' and done_at is not null from agent.retention")
    identity = await enqueue(queue)
    await queue.execute("select agent.send_signal($1, 'go', '1', false, null)", identity)
    (row,) = await claim(queue)
    await queue.execute("select agent.delete_event($1)", row["id"])
    await drop_history(queue)
    assert await queue.fetchval(LEFT) == 1
    await queue.execute("update agent.test_clock set shift = '120 days'")
    await drop_history(queue)
    assert await queue.fetchval(LEFT) == 0


async def test_one_worker_drops_at_a_time_by_the_shortest_age(queue: Connection, connect: Connect) -> None:
    await finish(queue, "Ev1", 60)
    await drop_history(queue, "90 days")
    assert len(await ended(queue)) == 1
    async with stays_open(await connect(), "select * from agent.drop_history('30 days')"):
        assert await drop_history(queue, "30 days") == (0, False)
    assert (await drop_history(queue, "30 days"))[0] >= 1
    assert await ended(queue) == []
    await drop_history(await connect("surelane_worker"))
    for role in ("surelane_ingest", "surelane_producer"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await drop_history(await connect(role))


@pytest.mark.parametrize(
    "statement", ["lock table agent.event_hist in share mode", "select from agent.event_hist for update"]
)
async def test_an_open_transaction_stops_nobody(queue: Connection, connect: Connect, statement: str) -> None:
    locked = await finish(queue, "Ev1", 200)
    async with stays_open(await connect(), statement):
        with suppress(asyncpg.LockNotAvailableError):  # the worker tries again
            await drop_history(queue)
        assert await ended(queue) == [locked]
    await drop_history(queue)
    assert await ended(queue) == []


async def timescale(connection: Connection) -> bool:
    has: bool = await connection.fetchval("select 'timescaledb' in (select extname from pg_extension)")
    return has


async def test_history_is_what_its_list_says_in_tables_views_lists_and_models(queue: Connection) -> None:
    rows = await queue.fetch(
        "select relname, array_agg(attname::text order by attnum) as columns from pg_attribute as a"
        " join pg_class as c on c.oid = attrelid and relnamespace = 'agent'::regnamespace"
        " where attnum > 0 and not attisdropped group by 1"
    )
    there = {row["relname"]: set(row["columns"]) for row in rows}
    moved = await queue.fetchval("select prosrc from pg_proc where oid = 'agent.end_events'::regproc")
    (kept,) = re.findall(r"insert into agent.event_hist\s*\(([^)]*)\)", moved)
    views, history = {each.name for each in COLUMNS}, {each.of or each.name for each in COLUMNS} | {*INTERNAL}
    listed = {each.name for each in COLUMNS if each.listed is not None} - {"traceparent"} | {"trace_id"}
    places = {
        "agent.event_hist": (there["event_hist"], history),
        "agent.end_events": (set(re.findall(r"\w+", kept)), history),
        **{f"agent.{view}": (there[view], views) for view in ("live_job", "ended_job", "job")},
        "ListedEvent": (set(ListedEvent.model_fields), listed),
    }
    differ = {
        place: {"missing there": wanted - found, "missing in surelane_service.history": found - wanted}
        for place, (found, wanted) in places.items()
        if found != wanted
    }
    assert not differ


async def test_an_event_in_history_keeps_everything_it_had(queue: Connection) -> None:
    identity = await do.enqueue(
        queue, item_key="i", dedupe_key="d", group_key="g", traceparent="00-a", enqueued_by="me"
    )
    (row,) = await do.claim(queue)
    before = await do.event_of(queue, identity)
    await do.complete(queue, pair(row), results=['{"ok": true}'])
    after = await do.only_row(queue, "select * from agent.event_hist where id = $1", identity)
    columns = await queue.fetch(
        "select attname from pg_attribute where attrelid = 'agent.event'::regclass and attnum > 0 and not attisdropped"
    )
    assert {name: after[name] for (name,) in columns} == {name: before[name] for (name,) in columns}
    assert (after["outcome"], after["reason"]) == ("completed", None)
    assert (after["result"], after["finished_by"]) == ('{"ok": true}', "w1")
    assert after["finished_at"] >= after["claimed"][-1]
    await do.advance(queue, timedelta(days=400))
    assert await do.claim(queue) == []
    assert await queue.fetchval("select count(*) from agent.event_hist") == 1
    # History is a hypertable exactly where TimescaleDB is.
    assert await queue.fetchval("select agent.history_is_hypertable()") is await timescale(queue)


async def test_old_events_of_one_day_end_without_waiting(queue: Connection, other: Connection) -> None:
    """The first of them is noted for lists, by a transaction that stays open here."""
    ids = [await do.insert(queue, envelope(f"Ev{n}", event_ts="1700000000.000100")) for n in range(3)]
    await queue.execute("select agent.delete_event($1)", ids[0])  # who makes a chunk keeps others waiting
    await queue.execute("delete from agent.event_hist_outlier")
    async with other.transaction():
        await other.execute("select agent.delete_event($1)", ids[1])
        await asyncio.wait_for(queue.execute("select agent.delete_event($1)", ids[2]), 60)
    listed = await queue.fetch("select id from agent.list_jobs()")
    assert {row["id"] for row in listed} == set(ids)
