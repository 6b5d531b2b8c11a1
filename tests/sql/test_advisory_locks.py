"""Any login can take any advisory lock, and keep it: the queue goes on, and the doctor says who has it."""

import asyncio
import re
from datetime import timedelta

import pytest

from surelane.calls import Connection
from surelane_operator.doctor import Level
from surelane_operator.doctor.server import foreign_locks
from surelane_service.engine import Engine
from tests.sql import queue_steps as do
from tests.sql.conftest import Connect
from tests.sql.queue_steps import MINUTE, pair

HASHED = (
    *("agent.heartbeat", "agent.kind new", "agent.kind job", "agent.kind_limit job", "agent.limit job kind:"),
    *(
        "agent.share_kind job",
        "agent.band",
        "agent.drop_history",
        "agent.erase_uninstalled",
        "agent.rule T1 C1",
    ),
    *('agent.position 0 ["job"]', 'agent.position 1 ["job"]', "agent.move"),
)
"""The names of locks that this or an earlier release took."""
ALLOWED = {
    *("take_position", "position_free", "leave_position", "open_session", "extend_leases"),
    *("limit_room", "open_sessions", "foreign_locks"),
}
"""What may take or read one: workers' sessions and positions are hints, and a heartbeat goes on without."""


@pytest.fixture
async def foreign(queue: Connection, connect: Connect) -> Connection:
    """Take every lock that can be guessed, by a login that may only enqueue."""
    login = await connect("surelane_producer")
    await login.execute(
        "select pg_advisory_lock(hashtextextended(name, 0)) from unnest($1::text[]) as name", HASHED
    )
    await login.execute(
        "select pg_advisory_lock(hashtext('agent.enqueue_jobs'), turn) from generate_series(0, 1023) as turn"
    )
    assert not queue.is_closed()
    return login


LIMIT = "select agent.declare_limits('w', '{job}', '{\"job\": {\"concurrency\": 1}}')"
GOES_ON = {
    "a new kind": ("select agent.enqueue('new')", "select count(*) from agent.claim_events('{new}')", 1),
    "a pause": ("select agent.pause_kind('new')", "select paused from agent.kind where kind = 'new'", True),
    "a limit": (
        "select agent.set_limit('job', 1, null, null, 'kind')",
        "select count(*) from agent.limits",
        1,
    ),
    "a reset": (f"{LIMIT}; select agent.reset_limit('job')", "select count(*) from agent.limits", 1),
    "a limited kind": (
        f"{LIMIT}; select agent.enqueue('job') from generate_series(1, 2)",
        "select count(*) from agent.claim_events('{job}')",
        1,
    ),
    "a batch that replaces": (
        """select * from agent.enqueue_jobs('[{"kind": "job", "group_key": "g"}]', 'replace')""",
        "select count(*) from agent.event",
        1,
    ),
    "retention": (
        "select agent.drop_history('90 days', 0, 10)",
        "select count(*) from agent.turn where name = 'drop_history'",
        1,
    ),
    "a rule": ("select agent.set_rule('T1', 1, 'C1', 'said', 'U1')", "select count(*) from agent.rule", 1),
    "erasing": (
        """insert into agent.uninstall (owner_id, enterprise_wide, at) values ('T1', false, '2020-01-01')""",
        "select owner from agent.erase_uninstalled('1 day', 'w')",
        "T1",
    ),
}


@pytest.mark.usefixtures("foreign")
@pytest.mark.parametrize("what", GOES_ON)
async def test_what_others_may_lock_is_not_waited_for(queue: Connection, what: str) -> None:
    statement, seen, expected = GOES_ON[what]
    async with asyncio.timeout(60):
        await queue.execute(statement)
        assert await queue.fetchval(seen) == expected


@pytest.mark.parametrize("limited", [False, True])
async def test_leases_are_renewed_beside_a_foreign_lock(
    queue: Connection, foreign: Connection, limited: bool
) -> None:
    assert not foreign.is_closed()
    if limited:
        await queue.execute(LIMIT)
    await do.enqueue(queue)
    (row,) = await do.claim(queue, lease=MINUTE)
    for _ in range(3):
        await do.advance(queue, timedelta(seconds=40))
        assert await do.extend(queue, pair(row), lease=MINUTE) == ["done"]
    await do.advance(queue, timedelta(seconds=55))
    # It might lapse before the renewal is committed, and a claim could take its slot.
    assert await do.extend(queue, pair(row), lease=MINUTE) == ["busy" if limited else "done"]


async def test_a_login_cannot_keep_a_dead_workers_session_or_take_the_next_one(
    queue: Connection, foreign: Connection, connect: Connect
) -> None:
    engine = Engine(own := await connect("surelane_worker"))
    assert await engine.open_session("w1", "1", starts=True)
    await engine.announce_worker("w1", ["job"], "1")
    session = await queue.fetchval("select session from agent.worker")
    await foreign.execute(
        "select pg_advisory_lock_shared(agent_class, $1) from (values (1937077859)) as c (agent_class)",
        session,
    )
    await foreign.execute("select pg_advisory_lock(1937077859, n) from generate_series(1, 500) as n")
    own.terminate()
    async with asyncio.timeout(60):
        while not await queue.fetchval("select names from agent.watch_sessions('w2')"):  # noqa: ASYNC110 - a process ends
            await asyncio.sleep(0.01)
    assert await Engine(await connect("surelane_worker")).open_session("w2", "1", starts=True)


@pytest.mark.parametrize("table", ["limit_state", "limit_note"])
async def test_a_limits_locked_row_stops_no_other_kind(
    queue: Connection, connect: Connect, table: str
) -> None:
    await queue.execute(f"{LIMIT}; select agent.enqueue('job') from generate_series(1, 2)")
    (row,) = await do.claim(queue)
    await do.complete(queue, pair(row))
    holder = await connect()
    async with holder.transaction():
        await holder.execute(f"select from agent.{table} for update")
        for _ in range(8):
            other = await do.enqueue(queue, "other")
            rows = await do.claim(queue, "job", "other")
            assert other in {row["id"] for row in rows}


async def test_the_doctor_names_the_holder(queue: Connection, foreign: Connection, connect: Connect) -> None:
    operator = await connect("surelane_operator")
    await Engine(await connect("surelane_worker")).announce_worker("w1", ["job"], "1")
    (finding,) = await foreign_locks(operator)
    named = f"process {foreign.get_server_pid()} (", "role surelane_producer", "heartbeats", "positions"
    assert (finding.level, [name for name in named if name not in finding.found]) == (Level.WARNING, [])
    await foreign.execute("select pg_advisory_unlock_all()")
    assert [each.level for each in await foreign_locks(operator)] == [Level.OK]
    assert not queue.is_closed()


async def test_no_other_function_takes_an_advisory_lock(queue: Connection) -> None:
    bodies = await queue.fetch(
        "select proname, pg_get_functiondef(oid) as body from pg_proc"
        " where pronamespace = 'agent'::regnamespace and prokind = 'f'"
    )
    taking = {row["proname"] for row in bodies if re.search(r"pg_\w*advisory|'advisory'", row["body"])}
    assert taking <= ALLOWED
