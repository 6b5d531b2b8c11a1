"""``surelane verify`` finds each broken rule, and nothing in a healthy queue, however busy it is."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import asyncpg
import pytest

from surelane.calls import Connection
from surelane_operator.doctor import Finding, Level, invariants, verify
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


ROOT = Path(__file__).parents[2]
BROKEN = Path(__file__).with_name("broken_rules.txt")


@dataclass(frozen=True)
class Break:
    """A broken rule: the check that finds it, what it names, and how it comes about; ``broken_rules.txt`` says more."""

    check: str
    named: str
    before: tuple[str, ...]
    past: tuple[str, ...] = ()
    cure: str | None = None

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


def read_breaks(text: str) -> dict[str, Break]:
    words, rows = text.split("\n\n")
    known = dict(re.findall("^([A-Z_]+) = (.+)$", words, re.MULTILINE))

    def statements(given: str) -> tuple[str, ...]:
        for _ in range(4):
            given = re.sub(r"\b[A-Z_]+\b", lambda word: known.get(word[0], word[0]), given)
        given = re.sub(r"^live (.*?)(?=; |$)", r"update agent.event set \1 where kind <> 'part'", given)
        return tuple(given.split("; ")) if given else ()

    breaks = {}
    for row in rows.splitlines():
        name, check, named, before, past, *cure = (part.strip(" ") for part in row.split("|"))
        breaks[name] = Break(
            check, named, statements(before), statements(past), *map("".join, map(statements, cure))
        )
    return breaks


BREAKS = read_breaks(BROKEN.read_text())
SCHEMA = {
    "index": "drop index agent.event_claim",
    "invalid index": "update pg_index set indisvalid = false where indexrelid = 'agent.event_item_key'::regclass",
    "trigger": "alter table agent.event disable trigger member_joins",
    "trigger of replicas": "alter table agent.event enable replica trigger event_deleted",
    "constraint": "alter table agent.event drop constraint attempts_not_negative",
    "body": "create or replace function agent.alive_for() returns interval language sql return interval '1 h'",
    "settings": "alter function agent.promote(text) reset all",
    "grant": "grant select on agent.installation to agent_worker",
    "revoke": "revoke execute on function agent.settle from agent_worker",
    "default": "alter table agent.event alter retrying drop default",
    "unlogged": "alter table agent.signal set unlogged",
    "rule": "create rule nothing as on delete to agent.signal do instead nothing",
    "sequence": "alter sequence agent.event_id_seq increment 2",
    "view": "create or replace view agent.live_job as table agent.ended_job",
}


@pytest.mark.parametrize("broken", BREAKS)
async def test_each_broken_rule_is_found_alone_and_named_and_its_advice_cures(
    broken: str, connection: Connection, operator: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invariants, "AGAIN", 0.0)
    given = BREAKS[broken]
    assert await wrong(operator) == {}
    named = await given.happen(connection)
    found = await wrong(operator)
    assert set(found) - {"objects"} == {given.check}, found
    finding = found[given.check]
    told = (finding.level, named in finding.found, bool(finding.advice))
    assert told == (Level.PROBLEM, True, True), finding
    check = next((each for each in CHECKS if each.name == given.check), CHECKS[0])
    for _ in range(5):
        if given.check in found:
            cure = given.cure or (found[given.check].advice or "").removeprefix(f"{check.advice}: ")
            await connection.execute(cure)
            found = await wrong(operator)
    assert set(found) - {"objects"} == set()


@pytest.mark.parametrize("changed", SCHEMA)
async def test_each_change_of_the_schema_is_found_and_named(
    changed: str, connection: Connection, operator: Connection
) -> None:
    await connection.execute(SCHEMA[changed])
    found = await wrong(operator)
    assert "objects" in found, found
    assert (found["objects"].level, bool(found["objects"].advice)) == (Level.PROBLEM, True)


def test_the_page_lists_every_rule() -> None:
    """With SURELANE_RECORD=1 it is written."""
    rows = [f"| {each.name} | {each.means} | `{each.table or 'the database'}` |" for each in CHECKS]
    page = ROOT / "docs/operating.md"
    before, after = page.read_text().split("| check | what it finds | what it looks at |\n|---|---|---|\n")
    listed, _, rest = after.partition("\n\n")
    if os.environ.get("SURELANE_RECORD"):
        head = "| check | what it finds | what it looks at |\n|---|---|---|\n"
        page.write_text(f"{before}{head}{chr(10).join(rows)}\n\n{rest}")
        return
    assert listed.splitlines() == rows, "if that is intended, run this test with SURELANE_RECORD=1"


def test_every_check_but_that_of_timescaledb_has_a_break() -> None:
    assert {check.name for check in CHECKS} - {each.check for each in BREAKS.values()} == {"hypertable"}


async def test_the_command_tells_by_its_exit_code_and_the_doctor_has_the_quick_checks(
    database: str, connection: Connection
) -> None:
    surelane = Command(as_role(database, "surelane_operator"))
    assert (await surelane("verify")).code == 0
    named = await BREAKS["no head"].happen(connection)
    verified, examined, wrong = await surelane.each("verify --json", "doctor", "verify --rows 0")
    said = json.loads(verified.out)
    bad = [each for each in said["findings"] if each["level"] == "problem"]
    assert (verified.code, said["healthy"], [each["check"] for each in bad]) == (1, False, ["group heads"])
    assert named in bad[0]["found"]
    assert "problem  group heads: 1 of 1: groups without a head" in examined.out
    assert (examined.code, wrong.code) == (1, 2)


HEADS = next(check for check in CHECKS if check.name == "group heads")


async def test_a_sample_is_stated_and_names_are_few(connection: Connection, operator: Connection) -> None:
    pairs = "select agent.enqueue('job', _group_key => 'g' || n % 8) from generate_series(0, 15) as n"
    await Break("", "", (pairs,), ("delete from agent.event where head",)).happen(connection)
    (all_of_them,) = await look(operator, HEADS, 100)
    assert all_of_them.found.startswith("8 of 8: ")
    assert all_of_them.found.endswith(": group g0; group g1; group g2; group g3; group g4; …")
    (some,) = await look(operator, HEADS, 3)
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
    assert {each.level for each in found.values()} == {Level.UNKNOWN}
    assert "lock timeout" in found["steps"].found
    slow = replace(HEADS, wrong="select pg_sleep(600)::text")
    monkeypatch.setattr("surelane_operator.doctor.invariants.BOUNDS", "set local statement_timeout = '100ms'")
    (finding,) = await look(operator, slow, 10)
    assert (finding.level, "statement timeout" in finding.found) == (Level.UNKNOWN, True)
    writes = replace(HEADS, wrong="select agent.pause_kind('job')::text")
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
                first.child.kill()
        for identity in stored:
            await ended(connection, identity, within=120)
        assert await wrong(operator) == {}
