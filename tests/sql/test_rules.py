"""Rules are read in the order of their scopes, limited per scope, set once, and erased."""

import asyncio
import json
from typing import Any

import pytest

from surelane.calls import Connection
from surelane_agents.rules import MOST
from surelane_service.engine import Engine
from tests.sql.conftest import Connect
from tests.sql.test_erase import erase, preview, traces
from tests.sql.test_queue_foreign_locks import stays_open


@pytest.fixture
async def worker(queue: Connection, connect: Connect) -> Engine:  # noqa: ARG001 - it empties the tables
    return Engine(await connect("surelane_worker"))


async def left(queue: Connection) -> list[str]:
    rows = await queue.fetch("select concat_ws(' ', owner_id, about, set_by) from agent.rule order by id")
    return [row[0] for row in rows]


async def test_rules_come_by_scope_and_then_by_age(worker: Engine) -> None:
    scopes = ("T1 U1", "T1 T1", "T1 C1", "T1 U1", "T2 T2", "T1 C2", "T1 T1")
    for number, (owner, about) in enumerate(map(str.split, scopes)):
        assert await worker.set_rule(owner, (number, about, f"rule {number}", "U1"), {})
    found = await worker.read_rules("T1", ["T1", "C1", "U1"])
    assert [(identity, text) for identity, _, text, _ in found] == [
        (nth, f"rule {nth}") for nth in (1, 6, 2, 0, 3)
    ]
    assert await worker.read_rules("T3", ["T1", "C1", "U1"]) == []


async def test_a_rule_is_set_once_and_a_scope_has_no_more_than_its_limit(worker: Engine) -> None:
    for number in range(MOST):
        assert await worker.set_rule("T1", (number, "U1", "x", "U1"), {})
    assert await worker.set_rule("T1", (0, "U1", "again", "U1"), {}), "an attempt that was repeated"
    assert not await worker.set_rule("T1", (MOST, "U1", "x", "U1"), {})
    assert await worker.set_rule("T1", (MOST, "C1", "x", "U1"), {})
    assert not await worker.drop_rule("T1", "C1", 0), "of another scope"
    assert not await worker.drop_rule("T2", "U1", 0), "of another workspace"
    assert await worker.drop_rule("T1", "U1", 0)
    assert not await worker.drop_rule("T1", "U1", 0)
    assert await worker.set_rule("T1", (MOST + 1, "U1", "x", "U1"), {})


async def test_rules_that_are_set_at_once_keep_the_limit(queue: Connection, connect: Connect) -> None:
    engines = [Engine(await connect("surelane_worker")) for _ in range(4)]
    setting = [engines[number % 4].set_rule("T1", (number, "C1", "x", "U1"), {}) for number in range(4)]
    await queue.execute(
        "insert into agent.rule select 100 + n, 'T1', 'C1', '{}', 'U1', now() from generate_series(1, $1 - 1) as n",
        MOST,
    )
    assert sum(await asyncio.gather(*setting)) == 1


async def test_an_erasure_takes_rules_of_by_and_about_a_person(queue: Connection, worker: Engine) -> None:
    rules: list[tuple[str, str, str, dict[str, Any]]] = [
        ("T1", "U1AB", "U1AB", {"text": "mine"}),
        ("T1", "C1", "U1AB", {"text": "a channel's"}),
        ("T1", "T1", "U2", {"text": "never mention <@U1AB>"}),
        ("T1", "T1", "U2", {"text": "a workspace's"}),
        ("T2", "U3", "U3", {"text": "of an organization", "enterprise_id": "E1"}),
        ("T3", "C2", "U3", {"text": "another's"}),
    ]
    for number, (owner, about, by, said) in enumerate(rules):
        await worker.set_rule(owner, (number, about, said.pop("text"), by), said)
    assert (await preview(queue, user="U1AB"))["rule"] == 3
    assert (await erase(queue, user="U1AB"))["rule"] == 3
    assert await traces(queue, "U1AB") == []
    assert await left(queue) == ["T1 T1 U2", "T2 U3 U3", "T3 C2 U3"]
    await erase(queue, team="T1")
    await erase(queue, team="E1")
    assert await left(queue) == ["T3 C2 U3"]
    await erase(queue, channel="C2")
    assert await left(queue) == []


async def test_a_locked_rule_stops_no_other_use(queue: Connection, worker: Engine, other: Connection) -> None:
    await worker.set_rule("T1", (1, "U1", "x", "U1"), {})
    async with stays_open(other, "select from agent.rule for update"):
        assert [rule[0] for rule in await worker.read_rules("T1", ["U1"])] == [1]
        assert await worker.set_rule("T1", (2, "U1", "y", "U1"), {})
    assert json.dumps((await erase(queue, user="U1"))["rule"]) == "2"


async def test_rules_are_read_by_their_index(queue: Connection) -> None:
    await queue.execute(
        "insert into agent.rule select n, 'T' || n % 1000, 'U' || n, '{\"text\": 1}', 'U', now()"
        " from generate_series(1, 20000) as n"
    )
    await queue.execute("analyze agent.rule")
    scans = "select seq_scan from pg_stat_xact_user_tables where relname = 'rule'"
    async with queue.transaction():
        before = await queue.fetchval(scans)
        assert len(await Engine(queue).read_rules("T7", ["T7", "C1", "U7"])) == 1
        assert await queue.fetchval(scans) == before
        assert await queue.fetchval("select count(*) from agent.rule where said = ''") == 0
        assert await queue.fetchval(scans) == before + 1, "so the test can fail"
