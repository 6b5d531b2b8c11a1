"""``surelane verify`` finds each broken rule, and nothing in a healthy queue, however busy it is."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import asyncpg
import pytest

from surelane.calls import Connection
from surelane_operator.doctor import Finding, Level, verify
from surelane_operator.doctor.invariants import CHECKS, look
from tests.databases import Server, as_role
from tests.sql.migrations import connected
from tests.system.test_cli import Command
from tests.system.worker import ended, enqueue, worker


@pytest.fixture
async def operator(database: str) -> AsyncIterator[Connection]:
    async with connected(as_role(database, "surelane_operator")) as connection:
        yield connection


@pytest.fixture
async def connection(server: Server, database: str) -> AsyncIterator[Connection]:
    """Connect as an administrator who goes past every trigger."""
    name = database.partition("?")[0].rpartition("/")[2]
    connected = await asyncpg.connect(server.admin, database=name)
    try:
        yield connected
    finally:
        await connected.close()


async def wrong(operator: Connection, rows: int = 1000) -> dict[str, Finding]:
    """Return what is not well, by check."""
    return {each.check: each for each in await verify(operator, rows) if each.level is not Level.OK}


ONE = "select agent.enqueue('job')"
PAIR = "select agent.enqueue('job', _group_key => 'g') from generate_series(1, 2)"
CLAIM = "select agent.claim_events('{job}', 1, 3, '10 min', 'w1')"
WORKER = "select agent.announce_worker('w1', '{job}', '1')"
LIMIT = """select agent.declare_limits('w1', '{job}', '{"job": {"per": "kind", "concurrency": 2}}')"""
HELD = "claimed_by = 'w2', claimed = '{now}', attempts = 1, vt = now() + '1 min'"
SECOND_HAND = f"update agent.event set {HELD} where not head"
DEAD = "update agent.worker set session = 99, died_at = now() - interval '1 min'"
FAN_OUT = """select agent.fan_out('[{"kind": "part", "payload": {}}]', '{"kind": "whole", "payload": {}}')"""
ENDED = """
select agent.delete_event(agent.insert_event('{"type": "event_callback", "team_id": "T1", "event_id": "Ev1"
, "event": {"type": "app_mention", "user": "U1", "channel": "C1", "text": "hi", "event_ts": "1700000000.000100"}}'))
"""
LIVE_AGAIN = """
insert into agent.event (id, event_ts, event, kind, item_key, head, lane) overriding system value
select id + 1000, event_ts + interval '1 s', event, kind, item_key, true, 0 from agent.event_hist
"""
ENDED_AGAIN = (
    "create temp table copied as select * from agent.event_hist",
    "update copied set id = id + 1000, event_ts = event_ts + interval '1 s'",
    "insert into agent.event_hist select * from copied",
)
OPEN_STREAM = """
update agent.event_hist set notes = '{"streams": {"1": {"channel": "C1", "ts": "1.0", "stopped": false}}}'
"""
ORPHAN = """
insert into agent.step (event_id, name, nth, sort, event_ts, attempt, started_at)
values (77, 'a', 1, 'wait', now(), 1, now())
"""


@dataclass(frozen=True)
class Break:
    """A broken rule: the check that finds it, what it names, and how it comes about.

    ``before`` is done as always, ``past`` goes past every trigger, as no function does.
    """

    check: str
    named: str
    before: tuple[str, ...]
    past: tuple[str, ...] = ()

    async def happen(self, connection: Connection) -> str:
        """Break the rule; return the name of what breaks it."""
        for statement in self.before:
            await connection.execute(statement)
        rows = "select id from agent.event union all select id from agent.event_hist"
        first = await connection.fetchval(f"select coalesce(min(id), 0) from ({rows}) as known")
        await connection.execute("set session_replication_role = replica")
        for statement in self.past:
            await connection.execute(statement)
        await connection.execute("reset session_replication_role")
        return self.named.format(first=first, second=first + 1000)


BREAKS = {
    "no head": Break("group heads", "group g", (PAIR,), ("delete from agent.event where head",)),
    "two hands": Break("group heads", "group g", (PAIR, CLAIM), (SECOND_HAND,)),
    "held behind a free head": Break(
        *("group heads", "group g", (PAIR, CLAIM)),
        (SECOND_HAND, "update agent.event set claimed_by = null, vt = now() where head"),
    ),
    "late head": Break(
        *("group heads", "group g", (PAIR,)),
        ("update agent.event set vt = now() + case when head then '1 h' else interval '-1 min' end",),
    ),
    "retry behind": Break(
        "group heads", "group g", (PAIR,), ("update agent.event set retrying = true where not head",)
    ),
    "dead hand": Break("claims", "event {first}, claim 1 of w1", (WORKER, ONE, CLAIM, DEAD)),
    "lost hand": Break(
        *("claims", "event {first}, claim 1 of w1"),
        (
            *(WORKER, ONE, CLAIM, DEAD),
            "update agent.worker set died_at = null, seen_at = now() - interval '2 min'",
        ),
    ),
    "silent hand": Break(
        *("claims", "event {first}, claim 1 of w1"),
        (ONE, CLAIM, "update agent.event set heartbeat_at = now() - interval '8 min'"),
    ),
    "uncounted slot": Break(
        *("limit slots", "event {first}"),
        (WORKER, LIMIT, ONE, CLAIM, "update agent.limit_state set running = '{}'"),
    ),
    "lost note": Break(
        *("reachable", "event {first}", (WORKER, LIMIT, ONE)),
        ("update agent.event set vt = now() - interval '1 hour'", "delete from agent.limit_note"),
    ),
    "unknown kind": Break("reachable", "event {first}", (ONE, "delete from agent.kind")),
    "lost children": Break(
        *("reachable", "event ", (FAN_OUT,)), ("delete from agent.event where kind = 'part'",)
    ),
    "ending that nothing ends": Break(
        *("cancelled", "event {first}", (ONE,)), ("update agent.event set cancelled_by = 'w1'",)
    ),
    "live and ended": Break("one row a key", "event {second}", (ENDED,), (LIVE_AGAIN,)),
    "same id": Break(
        *("one row a key", "event {first}", (ENDED, "insert into agent.kind values ('job')")),
        (LIVE_AGAIN, "update agent.event set id = id - 1000, item_key = 'x', kind = 'job'"),
    ),
    "ended twice": Break("one row a key", "event {second}", (ENDED,), ENDED_AGAIN),
    "id ended twice": Break(
        *("one row a key", "event 7", (ENDED,)),
        (*ENDED_AGAIN, "update agent.event_hist set id = 7, kind = 'job'"),
    ),
    "left open": Break(*("open messages", "event {first}", (ENDED,)), (OPEN_STREAM,)),
    "orphaned step": Break(*("steps", "event 77"), (ORPHAN,)),
}


@pytest.mark.parametrize("broken", BREAKS)
async def test_each_broken_rule_is_found_alone_and_named(
    broken: str, connection: Connection, operator: Connection
) -> None:
    assert await wrong(operator) == {}
    named = await BREAKS[broken].happen(connection)
    found = await wrong(operator)
    assert list(found) == [BREAKS[broken].check], found
    (finding,) = found.values()
    told = (finding.level, named in finding.found, bool(finding.advice))
    assert told == (Level.PROBLEM, True, True), finding


def test_every_check_but_that_of_timescaledb_has_a_break() -> None:
    assert {check.name for check in CHECKS} - {each.check for each in BREAKS.values()} == {"partitions"}


async def test_the_command_tells_by_its_exit_code_and_the_doctor_has_the_quick_checks(
    database: str, connection: Connection
) -> None:
    surelane = Command(as_role(database, "surelane_operator"))
    assert (await surelane("verify")).code == 0
    named = await BREAKS["two hands"].happen(connection)
    verified, examined, wrong = await surelane.each("verify --json", "doctor", "verify --rows 0")
    said = json.loads(verified.out)
    bad = [each for each in said["findings"] if each["level"] == "problem"]
    assert (verified.code, said["healthy"], [each["check"] for each in bad]) == (1, False, ["group heads"])
    assert named in bad[0]["found"]
    assert "problem  group heads: 1 of 1: groups without a head" in examined.out
    assert (examined.code, wrong.code) == (1, 2)


async def test_a_sample_is_stated_and_names_are_few(connection: Connection, operator: Connection) -> None:
    pairs = "select agent.enqueue('job', _group_key => 'g' || n % 8) from generate_series(0, 15) as n"
    await Break("", "", (pairs,), ("delete from agent.event where head",)).happen(connection)
    heads = CHECKS[0]
    (all_of_them,) = await look(operator, heads, 100)
    assert all_of_them.found.startswith("8 of 8: ")
    assert all_of_them.found.endswith(": group g0; group g1; group g2; group g3; group g4; …")
    (some,) = await look(operator, heads, 3)
    assert some.found.startswith("3 of the first 3: ")


async def test_what_a_second_look_does_not_find_was_a_race(
    connection: Connection, operator: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's session is in no snapshot: here it opens another one between the looks."""
    await BREAKS["dead hand"].happen(connection)
    looked = asyncio.Event()

    async def reopened(_: float) -> None:
        looked.set()
        await connection.execute("update agent.worker set died_at = null, session = null")

    monkeypatch.setattr("surelane_operator.doctor.invariants.asyncio.sleep", reopened)
    assert (await wrong(operator), looked.is_set()) == ({}, True)


async def test_it_only_reads_and_waits_for_no_lock_and_for_no_slow_statement(
    connection: Connection, operator: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connection.transaction():
        await connection.execute("lock table agent.step in access exclusive mode")
        found = await wrong(operator)
    assert (list(found), found["steps"].level) == (["steps"], Level.UNKNOWN)
    assert "lock timeout" in found["steps"].found
    slow = replace(CHECKS[0], wrong="select pg_sleep(600)::text")
    monkeypatch.setattr("surelane_operator.doctor.invariants.BOUNDS", "set local statement_timeout = '100ms'")
    (finding,) = await look(operator, slow, 10)
    assert (finding.level, "statement timeout" in finding.found) == (Level.UNKNOWN, True)
    writes = replace(CHECKS[0], wrong="select agent.pause_kind('job')::text")
    (finding,) = await look(operator, writes, 10)
    assert (finding.level, "read-only transaction" in finding.found) == (Level.UNKNOWN, True)


async def test_a_busy_healthy_queue_has_no_finding(
    database: str, connection: Connection, operator: Connection
) -> None:
    """Groups, retries, limits, batches, steps and fan-outs run in two workers; one is killed on the way."""
    kinds = ("nothing", "raise-once", "one-at-a-time", "together", "step", "ordered", "sleep")
    stored: list[int] = []
    async with worker(database) as first, worker(database):
        for turn in range(3):
            for nth in range(35):
                kind, group = kinds[nth % len(kinds)], f"g{nth % 6}" if nth % 4 else None
                stored.append(await enqueue(connection, kind, {"seconds": 0.05}, group_key=group))
            await connection.execute(
                'select agent.fan_out(\'[{"kind": "nothing"}, {"kind": "sleep"}]\', \'{"kind": "nothing"}\')'
            )
            assert await wrong(operator) == {}
            if turn == 1:
                first.process.kill()
        for identity in stored:
            await ended(connection, identity, within=120)
        assert await wrong(operator) == {}
