"""History is a hypertable with TimescaleDB, else a plain table."""

import asyncio
from datetime import timedelta

from surelane.calls import Connection
from tests.needs import lacking
from tests.sql import queue_steps as do
from tests.sql.queue_steps import envelope, pair


async def timescale(connection: Connection) -> bool:
    has: bool = await connection.fetchval("select 'timescaledb' in (select extname from pg_extension)")
    return has


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


async def test_a_duplicate_is_looked_up_in_one_chunk(queue: Connection) -> None:
    """The lookup uses the item key and the exact time, so its cost does not grow with history."""
    if not await timescale(queue):
        lacking("a plain table has no chunks")
    for month in range(6):
        await do.finish(queue, f"Ev{month}", month * 30)
    found = "select id from agent.event_hist where item_key = $1 and event_ts = $2 limit 1"
    plan = await queue.fetch(
        f"explain {found}", "Ev3", await queue.fetchval("select max(event_ts) from agent.event_hist")
    )
    text = "\n".join(line for (line,) in plan)
    assert text.count("_chunk") <= 2
    assert "Index Scan" in text or "Seq Scan on _hyper" in text


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
