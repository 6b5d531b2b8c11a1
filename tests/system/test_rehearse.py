"""``surelane rehearse`` cuts connections of two real workers, measures, and refuses where it is not meant."""

import json
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from surelane.calls import Connection
from surelane_dev.accounts import uri_of
from surelane_operator.rehearsing import SCENES
from tests import forked
from tests.databases import Server, as_role
from tests.processes import clean_environment
from tests.system.test_cli import Command, Done
from tests.system.worker import worker


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


async def rehearse(uri: str, staging: str) -> Done:
    return await Command(uri)("rehearse", "--staging", staging, "--json")


async def workers(stack: AsyncExitStack, database: str) -> None:
    for _ in range(2):
        await stack.enter_async_context(
            worker(database, SURELANE_HANDLERS="surelane_worker.builtin:handlers")
        )


@pytest.mark.timeout(400)
async def test_a_fleet_keeps_its_promises_while_its_connections_are_cut(
    database: str, connection: Connection, rehearser: str
) -> None:
    env = {**clean_environment(), "DATABASE_URL": rehearser}
    arguments = ("rehearse", "--staging", name_of(database), "--json")
    async with AsyncExitStack() as stack:
        await workers(stack, database)
        # The workers' lines would get into the output of a command in this process.
        process = await forked.start("surelane_operator.cli", *arguments, env=env, stderr=True)
        out, err = await process.communicate()
        newest = await connection.fetchval("select min(session) from agent.worker")
        assert newest > 2, "a worker did not have to open another session"
    said = json.loads(out or b"{}")
    late = set()
    for scene, (_, within) in SCENES.items():
        found = [each for each in said["findings"] if each["check"] == scene]
        promised = ["300 of 300 events ended", "0 ended twice", "5 groups ended in their order"]
        assert [each["found"] for each in found[:3]] == promised, err
        assert f"promised: {within:g} s" in found[3]["found"]
        late.add(found[3]["level"])  # on a busy machine
    others = [each["level"] for each in said["findings"] if each["check"] not in SCENES]
    assert "problem" not in others
    assert (process.returncode, said["healthy"]) == ((1, False) if "problem" in late else (0, True)), err
    assert {"group heads", "claims", "timeline"} <= {each["check"] for each in said["findings"]}
    kept = await connection.fetch("select action, target, via from agent.operator_action")
    assert [tuple(each) for each in kept] == [("rehearse", "kind analytics-write", "command")]


async def test_it_refuses_what_is_not_named_not_allowed_or_not_there(
    database: str, connection: Connection, rehearser: str
) -> None:
    name = name_of(database)
    done = await rehearse(rehearser, "production")
    assert done.refused(1, f"this is the database {name}, not production: nothing was done")
    done = await rehearse(rehearser, name)
    assert done.refused(1, "0 workers with sessions handle analytics-write: start two")
    async with AsyncExitStack() as stack:
        await workers(stack, database)
        done = await rehearse(as_role(database, "surelane_operator"), name)
        assert done.refused(1, "grant pg_signal_backend to it")
    for table in ("job", "operator_action"):
        assert await connection.fetchval(f"select count(*) from agent.{table}") == 0
