"""``surelane verify`` finds each broken rule, and nothing in a healthy queue, however busy it is."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import asyncpg
import pytest

from surelane.calls import Connection
from surelane_operator.doctor import Finding, Level, verify
from surelane_operator.doctor.invariants import CHECKS, look
from tests.databases import Server, as_role
from tests.system.test_cli import Command
from tests.system.worker import ended, enqueue, worker


@pytest.fixture
async def operator(database: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(as_role(database, "surelane_operator"))
    try:
        yield connection
    finally:
        await connection.close()


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


async def past_triggers(connection: Connection, *statements: str) -> None:
    """Change rows as no function does."""
    await connection.execute("set session_replication_role = replica")
    for statement in statements:
        await connection.execute(statement)
    await connection.execute("reset session_replication_role")


async def claim(connection: Connection, name: str, *kinds: str, limit: int = 10) -> list[int]:
    rows = await connection.fetch(
        "select id from agent.claim_events($1, $2, 3, '10 min', $3)", list(kinds), limit, name
    )
    return [row["id"] for row in rows]


async def in_history(connection: Connection, key: str) -> int:
    """Store a Slack event under a key, and end it."""
    inner = {
        "type": "app_mention",
        "user": "U1",
        "channel": "C1",
        "text": "hi",
        "event_ts": "1700000000.000100",
    }
    payload = {"type": "event_callback", "team_id": "T1", "event_id": key, "event": inner}
    identity: int = await connection.fetchval("select agent.insert_event($1)", json.dumps(payload))
    await connection.execute("select agent.delete_event($1)", identity)
    return identity


async def of_a_pair(connection: Connection, *statements: str) -> str:
    """Store two events of a group, the second behind the first, and change them."""
    for _ in range(2):
        await enqueue(connection, "job", group_key="g")
    await past_triggers(connection, *statements)
    return "group g"


async def no_head(connection: Connection) -> str:
    return await of_a_pair(connection, "delete from agent.event where head")


async def two_hands(connection: Connection) -> str:
    await of_a_pair(connection)
    await claim(connection, "w1", "job", limit=1)
    held = "claimed_by = 'w2', claimed = '{now}', attempts = 1, vt = now() + '1 min'"
    await past_triggers(connection, f"update agent.event set {held} where not head")
    return "group g"


async def held_behind_a_free_head(connection: Connection) -> str:
    await two_hands(connection)
    await past_triggers(connection, "update agent.event set claimed_by = null, vt = now() where head")
    return "group g"


async def late_head(connection: Connection) -> str:
    later = "update agent.event set vt = now() + case when head then '1 h' else interval '-1 min' end"
    return await of_a_pair(connection, later)


async def retry_behind(connection: Connection) -> str:
    return await of_a_pair(connection, "update agent.event set retrying = true where not head")


async def dead_hand(connection: Connection) -> str:
    identity = await enqueue(connection, "job")
    await connection.execute("select agent.announce_worker('w1', '{job}', '1')")
    assert await claim(connection, "w1", "job") == [identity]
    await connection.execute("update agent.worker set session = 99, died_at = now() - interval '1 min'")
    return f"event {identity}, claim 1 of w1"


async def lost_hand(connection: Connection) -> str:
    found = await dead_hand(connection)
    await connection.execute("update agent.worker set died_at = null, seen_at = now() - interval '2 min'")
    return found


async def silent_hand(connection: Connection) -> str:
    identity = await enqueue(connection, "job")
    assert await claim(connection, "w1", "job") == [identity]
    await connection.execute("update agent.event set heartbeat_at = now() - interval '8 min'")
    return f"event {identity}, claim 1 of w1"


async def limited(connection: Connection) -> int:
    limits = {"job": {"per": "kind", "concurrency": 2}}
    await connection.execute("select agent.announce_worker('w1', '{job}', '1')")
    await connection.fetchval("select agent.declare_limits('w1', '{job}', $1)", json.dumps(limits))
    return await enqueue(connection, "job")


async def uncounted_slot(connection: Connection) -> str:
    identity = await limited(connection)
    assert await claim(connection, "w1", "job") == [identity]
    await connection.execute("update agent.limit_state set running = '{}'")
    return f"event {identity}"


async def lost_note(connection: Connection) -> str:
    identity = await limited(connection)
    await connection.execute(
        "update agent.event set vt = now() - interval '1 hour'; delete from agent.limit_note"
    )
    return f"event {identity}"


async def unknown_kind(connection: Connection) -> str:
    identity = await enqueue(connection, "job")
    await connection.execute("delete from agent.kind")
    return f"event {identity}"


async def lost_children(connection: Connection) -> str:
    await connection.execute(
        'select agent.fan_out(\'[{"kind": "part", "payload": {}}]\', \'{"kind": "whole", "payload": {}}\')'
    )
    identity = await connection.fetchval("select id from agent.event where waits_for is not null")
    await past_triggers(connection, "delete from agent.event where kind = 'part'")
    return f"event {identity}"


async def live_and_ended(connection: Connection) -> str:
    identity = await in_history(connection, "Ev1")
    await past_triggers(
        connection,
        "insert into agent.event (id, event_ts, event, kind, item_key, head, lane) overriding system value"
        " select id + 1000, event_ts + interval '1 s', event, kind, item_key, true, 0 from agent.event_hist",
    )
    return f"event {identity + 1000}"


async def same_id(connection: Connection) -> str:
    found = await live_and_ended(connection)
    await past_triggers(
        connection,
        "update agent.event set id = id - 1000, item_key = 'x', kind = 'job'",
        "insert into agent.kind values ('job')",
    )
    return f"event {int(found.split()[1]) - 1000}"


async def ended_twice(connection: Connection) -> str:
    identity = await in_history(connection, "Ev1")
    await past_triggers(
        connection,
        "create temp table copied as select * from agent.event_hist",
        "update copied set id = id + 1000, event_ts = event_ts + interval '1 s'",
        "insert into agent.event_hist select * from copied",
    )
    return f"event {identity + 1000}"


async def id_ended_twice(connection: Connection) -> str:
    await ended_twice(connection)
    await past_triggers(connection, "update agent.event_hist set id = 7, kind = 'job'")
    return "event 7"


async def left_open(connection: Connection) -> str:
    identity = await in_history(connection, "Ev1")
    notes = {"streams": {"1": {"channel": "C1", "ts": "1.0", "stopped": False}}}
    await past_triggers(connection, f"update agent.event_hist set notes = '{json.dumps(notes)}'")
    return f"event {identity}"


async def orphaned_step(connection: Connection) -> str:
    await connection.execute(
        "insert into agent.step (event_id, name, nth, sort, event_ts, attempt, started_at)"
        " values (77, 'a', 1, 'wait', now(), 1, now())"
    )
    return "event 77"


Break = Callable[[Connection], Awaitable[str]]
BREAKS: dict[Break, str] = {
    no_head: "group heads",
    two_hands: "group heads",
    held_behind_a_free_head: "group heads",
    late_head: "group heads",
    retry_behind: "group heads",
    dead_hand: "claims",
    lost_hand: "claims",
    silent_hand: "claims",
    uncounted_slot: "limit slots",
    lost_note: "reachable",
    unknown_kind: "reachable",
    lost_children: "reachable",
    live_and_ended: "one row a key",
    same_id: "one row a key",
    ended_twice: "one row a key",
    id_ended_twice: "one row a key",
    left_open: "open messages",
    orphaned_step: "steps",
}


@pytest.mark.parametrize("broken", BREAKS, ids=lambda broken: broken.__name__)
async def test_each_broken_rule_is_found_alone_and_named(
    broken: Break, connection: Connection, operator: Connection
) -> None:
    assert await wrong(operator) == {}
    named = await broken(connection)
    found = await wrong(operator)
    assert list(found) == [BREAKS[broken]], found
    (finding,) = found.values()
    assert (finding.level, named in finding.found, bool(finding.advice)) == (Level.PROBLEM, True, True), (
        finding
    )


def test_every_check_but_that_of_timescaledb_has_a_break() -> None:
    assert {check.name for check in CHECKS} - set(BREAKS.values()) == {"partitions"}


async def test_the_command_tells_by_its_exit_code_and_the_doctor_has_the_quick_checks(
    database: str, connection: Connection
) -> None:
    surelane = Command(as_role(database, "surelane_operator"))
    assert (await surelane("verify")).code == 0
    named = await two_hands(connection)
    verified, examined, wrong = await surelane.each("verify --json", "doctor", "verify --rows 0")
    said = json.loads(verified.out)
    bad = [each for each in said["findings"] if each["level"] == "problem"]
    assert (verified.code, said["healthy"], [each["check"] for each in bad]) == (1, False, ["group heads"])
    assert named in bad[0]["found"]
    assert "problem  group heads: 1 of 1: groups without a head" in examined.out
    assert (examined.code, wrong.code) == (1, 2)


async def test_a_sample_is_stated_and_names_are_few(connection: Connection, operator: Connection) -> None:
    for key in range(8):
        await enqueue(connection, "job", group_key=f"g{key}")
        await enqueue(connection, "job", group_key=f"g{key}")
    await past_triggers(connection, "delete from agent.event where head")
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
    await dead_hand(connection)
    looked = asyncio.Event()

    async def reopened(_: float) -> None:
        looked.set()
        await connection.execute("update agent.worker set died_at = null, session = null")

    monkeypatch.setattr("surelane_operator.doctor.invariants.asyncio.sleep", reopened)
    assert (await wrong(operator), looked.is_set()) == ({}, True)


async def test_it_waits_for_no_lock_and_for_no_slow_statement(
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


async def test_it_only_reads(operator: Connection) -> None:
    writes = replace(CHECKS[0], wrong="select agent.pause_kind('job')::text")
    (finding,) = await look(operator, writes, 10)
    assert (finding.level, "read-only transaction" in finding.found) == (Level.UNKNOWN, True)


async def test_a_role_that_may_not_look_is_told_which_may(database: str) -> None:
    done = await Command(as_role(database, "surelane_ingest"))("verify")
    assert (done.code, "unknown  claims: this role may not see it" in done.out) == (0, True), done
    assert "connect as a member of agent_operator" in done.out


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
