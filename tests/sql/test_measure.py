"""The queue's figures are right, measured once for all replicas, and cheap to measure."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from tests.databases import Server
from tests.sql.conftest import Connect
from tests.sql.migrations import connected
from tests.sql.queue_steps import advance, claim, enqueue
from tests.sql.test_console_reads import fewest_pages
from tests.vacuum import holder, owner_sees_sessions, snapshot_held


@pytest.fixture(autouse=True)
async def unmeasured(queue: Connection) -> None:
    await queue.execute("update agent.measurement set due = '-infinity', measured_at = null, figures = '{}'")


async def measure(connection: Connection) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(await connection.fetchval("select agent.measure_queue()"))
    return figures


async def until_due(queue: Connection) -> None:
    """Advance the clock until the next measurement is due. The longer the last one took, the later that is."""
    await queue.execute(
        "update agent.test_clock set shift = greatest(shift, m.due - clock_timestamp()) from agent.measurement as m"
    )


def states(figures: dict[str, Any]) -> dict[str, tuple[int, int, int]]:
    return {kind["kind"]: (kind["pending"], kind["scheduled"], kind["running"]) for kind in figures["kinds"]}


async def test_events_are_counted_by_kind_and_state(queue: Connection) -> None:
    for _ in range(3):
        await enqueue(queue, "mail")
    await claim(queue, "mail", limit=1)
    await enqueue(queue, "mail", run_at=datetime.now(UTC) + timedelta(hours=1))
    await enqueue(queue, "note")
    await queue.execute("select agent.pause_kind('note')")
    await advance(queue, timedelta(minutes=5))
    figures = await measure(queue)
    assert states(figures) == {"mail": (2, 1, 1), "note": (1, 0, 0)}
    assert [kind["paused"] for kind in figures["kinds"]] == [False, True]
    assert [300 <= kind["oldest_pending_age"] < 330 for kind in figures["kinds"]] == [True, True]
    exact = await queue.fetch("select kind, pending, scheduled, running from agent.queue_stats()")
    assert {row[0]: tuple(row)[1:] for row in exact} == states(figures)


async def test_of_many_kinds_the_largest_have_names_and_the_others_are_one(queue: Connection) -> None:
    await queue.execute("insert into agent.kind (kind) select 'k' || n from generate_series(1, 700) as n")
    await queue.execute(
        "insert into agent.event (event_ts, kind, event, head, lane) select now(), kind, '{}', true, 1"
        " from (select 'k' || n as kind from generate_series(1, 700) as n"
        " union all select 'z' from generate_series(1, 9)) as given"
    )
    await queue.execute("insert into agent.kind values ('z'), ('limited')")
    await queue.execute("select agent.set_limit('limited', 1, null, null, null), agent.enqueue('limited')")
    await claim(queue, "z", limit=2)
    kinds = states(await measure(queue))
    assert (len(kinds), kinds["z"]) == (501, (7, 0, 2))
    assert [sum(column) for column in zip(*kinds.values(), strict=True)] == [708, 0, 2]
    await queue.execute("update agent.event set vt = now() + interval '1 hour' where kind <> 'z'")
    await until_due(queue)
    kinds = states(await measure(queue))
    assert [sum(column) for column in zip(*kinds.values(), strict=True)] == [7, 701, 2]


async def test_a_group_counts_once_until_it_runs(queue: Connection) -> None:
    for _ in range(4):
        await enqueue(queue, "mail", group_key="ada")
    waiting = await measure(queue)
    assert (states(waiting), waiting["group_waiting"]) == ({"mail": (1, 0, 0)}, 3)
    await claim(queue, "mail")
    await until_due(queue)
    running = await measure(queue)
    assert (states(running), running["group_waiting"]) == ({"mail": (0, 0, 4)}, 0)


async def test_an_empty_queue_has_figures_and_workers_count_for_ninety_seconds(queue: Connection) -> None:
    await queue.execute("select agent.announce_worker('w', '{}', '0.1.0', interval '1 second')")
    figures = await measure(queue)
    assert (figures["kinds"], figures["group_waiting"], figures["workers"]) == ([], 0, 1)
    await advance(queue, timedelta(minutes=2))
    assert (await measure(queue))["workers"] == 0


async def test_figures_are_measured_once_for_all_who_ask(queue: Connection, connect: Connect) -> None:
    first = await measure(queue)
    await enqueue(queue, "mail")
    for role in ("surelane_ingest", "surelane_worker"):
        later = await measure(await connect(role))
        assert (later["fresh"], later["measured_at"], later["kinds"]) == (False, first["measured_at"], [])
    await until_due(queue)
    measuring = await connect("surelane_ingest")
    async with measuring.transaction():
        again = await measure(measuring)
        assert (again["fresh"], states(again)) == (True, {"mail": (1, 0, 0)})
        meanwhile = await measure(queue)  # it does not wait
        assert (meanwhile["fresh"], meanwhile["measured_at"]) == (False, first["measured_at"])


SLOW = """
create sequence public.seconds;
create or replace function agent.clock() returns timestamptz language sql volatile
return clock_timestamp() + (select shift from agent.test_clock) + nextval('public.seconds') * interval '1 second';
"""
"""Each look at the clock takes a second. No statement that is given up takes one back."""
CANCELLED = """
create or replace function agent.vacuum_holder()
returns table (holder text, pid int4, application text, state text, since timestamptz, anchor text)
language plpgsql as $$ begin raise query_canceled; end $$;
"""


@asynccontextmanager
async def slow(queue: Connection, also: str = "") -> AsyncIterator[None]:
    """Make measuring take more than a second."""
    transaction = queue.transaction()
    await transaction.start()
    await queue.execute(SLOW + also)
    yield
    pause = await queue.fetchval("select due from agent.measurement")
    await transaction.rollback()
    await queue.execute("update agent.measurement set due = $1", pause)


async def test_measuring_that_takes_long_or_is_given_up_is_put_off(queue: Connection) -> None:
    before = await measure(queue)
    pause = "select extract(epoch from due - measured_at)::float8 from agent.measurement"
    usually = await queue.fetchval(pause)
    await until_due(queue)
    async with slow(queue):
        await measure(queue)
    assert await queue.fetchval(pause) > max(usually, 100)
    await until_due(queue)
    async with slow(queue, CANCELLED):
        given_up = await measure(queue)
    assert (given_up["fresh"], given_up["measured_at"]) == (False, before["measured_at"])
    left = "select extract(epoch from due - agent.clock())::float8 from agent.measurement"
    assert await queue.fetchval(left) > 20


MANY = 60_000


@pytest.mark.slow
async def test_a_large_backlog_is_estimated_and_a_small_one_counted(server: Server, template: str) -> None:
    async with server.fresh(template) as name, connected(server.uri(name)) as backlog:
        # An automatic analyze would make sessions plan anew, and read pages of the catalogue.
        await backlog.execute("alter table agent.event set (autovacuum_enabled = off)")
        await backlog.execute("insert into agent.kind values ('mail'), ('note')")
        await backlog.execute(
            "insert into agent.event (event_ts, vt, kind, event, head, lane)"
            " select now(), now() - interval '1 hour', case when n % $1 < 30 then 'note' else 'mail' end,"
            " jsonb_build_object('text', repeat('word ', 100)), true, floor(random() * 16)"
            " from generate_series(0, $1 - 1) as n",
            MANY,
        )
        # Until every page is all-visible. A snapshot of another session may delay that for a moment.
        hidden = "select relallvisible < relpages or relpages = 0 from pg_class where relname = 'event'"
        async with asyncio.timeout(90):
            while await backlog.fetchval(hidden):
                await backlog.execute("vacuum analyze agent.event")
        mail, note = json.loads(await backlog.fetchval("select agent.queue_figures(null)"))["kinds"]
        assert mail["pending"] == pytest.approx(MANY - 30, rel=0.05)
        assert note["pending"] == 30
        read = await fewest_pages(backlog, "select agent.queue_figures(null)")
        pages = await backlog.fetchval("select pg_relation_size('agent.event') / 8192")
        assert read < pages / 10, f"{read} pages of {pages}"


async def test_a_server_knows_the_newest_timeline_that_it_was_told_of(queue: Connection) -> None:
    """Another server begins anew, as after an upgrade of PostgreSQL."""
    own = "select (timeline, newest)::text from agent.own_timeline()"
    tell = "select agent.note_timeline(system_identifier + $1, $2) from agent.own_timeline()"
    assert await queue.fetchval(tell, 1, 9) == 9
    assert await queue.fetchval(own) == "(1,1)"
    assert await queue.fetchval(tell, 0, 7) == 7
    assert await queue.fetchval(tell, 0, 3) == 7
    assert await queue.fetchval(own) == "(1,7)"


# What holds back vacuum: the slow tests wait until their session does so. On a shared server, that takes longer.


@pytest.mark.slow
async def test_what_holds_back_vacuum_is_named(server: Server, queue: Connection, connect: Connect) -> None:
    async with owner_sees_sessions(server, may=True), snapshot_held(await connect("surelane_ingest")) as pid:
        began = await queue.fetchval("select extract(epoch from now())::float8")
        found = await holder(queue, pid)
    assert (found["holder"], found["application"], found["state"]) == (
        "session",
        "a report",
        "idle in transaction",
    )
    assert found["since"] == pytest.approx(began, abs=60)


@pytest.mark.slow
async def test_a_hidden_session_ages_once_seen(server: Server, queue: Connection, connect: Connect) -> None:
    async with owner_sees_sessions(server, may=False), snapshot_held(await connect("surelane_ingest")) as pid:
        first = await holder(queue, pid)
        assert (first["application"], first["state"]) == ("a report", None)
        await queue.execute("update agent.test_clock set shift = '1 hour'")
        later = await holder(queue, pid)
    assert later["since"] == first["since"]


@pytest.mark.slow
async def test_another_database_counts_by_writes(server: Server, queue: Connection, connect: Connect) -> None:
    async with owner_sees_sessions(server, may=True), server.fresh() as other:
        elsewhere = await asyncpg.connect(server.uri(other))
        async with snapshot_held(elsewhere) as pid, elsewhere.transaction():
            async with snapshot_held(await connect(), "here") as here:
                await holder(queue, here)
            await elsewhere.execute("create table written ()")
            assert (await holder(queue, pid))["application"] == "a report"
        await elsewhere.close()


async def test_what_only_waits_between_statements_holds_nothing(queue: Connection, connect: Connect) -> None:
    idle = await connect("surelane_ingest")
    pid = await idle.fetchval("select pg_backend_pid()")
    async with idle.transaction():
        await idle.execute("select 1")
        await queue.execute("update agent.measurement set due = '-infinity'")
        found = json.loads(await queue.fetchval("select agent.measure_queue()"))["holder"]
    assert found is None or found["pid"] != pid
