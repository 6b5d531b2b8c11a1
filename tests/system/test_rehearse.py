"""``surelane rehearse`` cuts connections of two real workers, measures, and refuses where it is not meant."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from surelane_dev.accounts import uri_of
from surelane_operator.doctor import Level
from surelane_operator.rehearsing import SCENES, judged
from tests import forked
from tests.databases import Server, as_role
from tests.processes import clean_environment
from tests.system.worker import worker

AT = datetime(2026, 1, 1, tzinfo=UTC)


def name_of(database: str) -> str:
    return database.partition("?")[0].rpartition("/")[2]


@pytest.fixture
async def rehearser(server: Server, database: str) -> AsyncIterator[str]:
    """Make a login that may end workers' connections; return the database's URI for it."""
    role = f"rehearser_{secrets.token_hex(4)}"
    await server.execute(
        f"create role {role} login password 'surelane' in role agent_operator, pg_signal_backend"
    )
    yield uri_of(database, role=role, database=name_of(database))
    await server.execute(f"drop role {role}")


async def rehearse(uri: str, *arguments: str) -> tuple[int, str, str]:
    """Run the command as a process."""
    env = {**clean_environment(), "COLUMNS": "200", "DATABASE_URL": uri}
    process = await forked.start("surelane_operator.cli", "rehearse", *arguments, env=env, stderr=True)
    async with asyncio.timeout(300):
        out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def workers(stack: AsyncExitStack, database: str) -> None:
    for _ in range(2):
        await stack.enter_async_context(
            worker(database, SURELANE_HANDLERS="surelane_worker.builtin:handlers")
        )


async def sessions(database: str) -> set[int]:
    """Return the numbers of the workers' sessions: each new one is higher."""
    connection = await asyncpg.connect(database)
    try:
        return {row["session"] for row in await connection.fetch("select session from agent.worker")}
    finally:
        await connection.close()


@pytest.mark.timeout(400)
async def test_a_fleet_keeps_its_promises_while_its_connections_are_cut(
    database: str, rehearser: str
) -> None:
    async with AsyncExitStack() as stack:
        await workers(stack, database)
        code, out, err = await rehearse(rehearser, "--staging", name_of(database), "--json")
        assert min(await sessions(database)) > 2, "a worker did not have to open another session"
    said = json.loads(out or "{}")
    assert (code, said["healthy"]) == (0, True), (out, err)
    for scene, (_, within) in SCENES.items():
        found = [each["found"] for each in said["findings"] if each["check"] == scene]
        assert found[:3] == ["300 of 300 events ended", "0 ended twice", "5 groups ended in their order"]
        assert f"promised: {within:g} s" in found[3]
    assert {"group heads", "claims", "timeline"} <= {each["check"] for each in said["findings"]}
    connection = await asyncpg.connect(database)
    try:
        kept = await connection.fetch("select action, target, via from agent.operator_action")
    finally:
        await connection.close()
    assert [tuple(each) for each in kept] == [("rehearse", "kind analytics-write", "command")]


async def test_it_refuses_what_is_not_named_not_allowed_or_not_there(database: str, rehearser: str) -> None:
    code, _, err = await rehearse(rehearser, "--staging", "production")
    assert (code, f"this is the database {name_of(database)}, not production: nothing was done" in err) == (
        1,
        True,
    )
    code, _, err = await rehearse(rehearser, "--staging", name_of(database))
    assert (code, "0 workers with sessions handle analytics-write: start two" in err) == (1, True)
    async with AsyncExitStack() as stack:
        await workers(stack, database)
        code, _, err = await rehearse(as_role(database, "surelane_operator"), "--staging", name_of(database))
        assert (code, "grant pg_signal_backend to it" in err) == (1, True)
    connection = await asyncpg.connect(database)
    try:
        assert await connection.fetchval("select count(*) from agent.job") == 0
        assert await connection.fetchval("select count(*) from agent.operator_action") == 0
    finally:
        await connection.close()


def row(identity: int, *, after: float = 1.0, group: str = "g", attempts: int = 1) -> dict[str, Any]:
    ended = AT + timedelta(seconds=after)
    return {"id": identity, "group_key": group, "enqueued_at": AT, "finished_at": ended, "attempts": attempts}


@pytest.mark.parametrize(
    ("rows", "broken"),
    [
        ([row(1)], "1 of 2 events ended"),
        ([row(1), row(2), row(2)], "1 ended twice"),
        ([row(1, after=2), row(2, after=1)], "1 groups ended in their order"),
        (
            [row(1), row(2, after=10.4)],
            "half within 1 s, all within 10 s; 0 in another attempt (promised: 10 s)",
        ),
    ],
)
def test_a_broken_promise_is_a_problem(rows: list[Any], broken: str) -> None:
    found = judged("a scene", 10, [1, 2], AT, rows)
    assert [each.found for each in found if each.level is Level.PROBLEM] == [broken]


def test_what_a_fault_met_is_measured_from_the_fault_on() -> None:
    fault = AT + timedelta(seconds=8)
    found = judged("a scene", 10, [1, 2], fault, [row(1, after=7), row(2, after=12)])
    assert found[3].found.startswith("half within 4 s, all within 7 s")
