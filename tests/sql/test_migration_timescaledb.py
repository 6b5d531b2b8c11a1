"""History becomes a hypertable if TimescaleDB is there, also later, and stays a table if it is not loaded."""

import json
import os
import re
import secrets
import time
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from surelane.calls import Connection
from surelane_dev.accounts import OWNER, create_roles, uri_of
from tests.databases import IMAGE, Server, running_server
from tests.needs import engine_answers, lacking
from tests.sql.migrations import command, connected
from tests.sql.queue_steps import drop_history, envelope

pytestmark = pytest.mark.container

FINISHED = "select agent.delete_event(agent.insert_event(jsonb_build_object('type', 'message', 'event_ts', $1::text)))"


@pytest.fixture(scope="module")
async def timescaledb(server: Server) -> AsyncIterator[Server]:
    """Return a server with TimescaleDB: the session's, or one of our own."""
    async with connected(server.admin) as admin:
        if await admin.fetchval(
            "select exists (select from pg_available_extensions where name = 'timescaledb')"
        ):
            yield server
            return
    if not engine_answers():
        lacking("no Docker engine answers")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SURELANE_TEST_DATABASE_URL", raising=False)
        patch.setenv("SURELANE_TEST_SERVER", "container")
        async with running_server() as own:
            yield own


@pytest.fixture
async def fresh(timescaledb: Server) -> AsyncIterator[str]:
    """Make an empty database there; return its URI."""
    async with timescaledb.fresh() as name:
        yield timescaledb.uri(name)


async def test_history_is_a_hypertable_where_it_can_be(fresh: str) -> None:
    """The extension stays out of our schema."""
    assert (await command(fresh, "apply")).code == 0
    assert "history    hypertable" in (await command(fresh, "status")).output
    finished = await command(fresh, "verify")
    assert (finished.code, finished.output) == (0, "")
    async with connected(fresh) as connection:
        schema = await connection.fetchval(
            "select extnamespace::regnamespace::text from pg_extension where extname = 'timescaledb'"
        )
    assert schema == "public"


async def test_a_plain_history_is_converted_with_its_rows_when_the_extension_comes(fresh: str) -> None:
    assert (await command(fresh, "apply")).code == 0
    async with connected(fresh) as connection:
        await connection.execute("drop extension timescaledb cascade")
    async with connected(fresh) as connection:
        for day in range(30):
            await connection.execute(FINISHED, f"{1_760_000_000 + day * 86_400}.000100")
    assert "history    table" in (await command(fresh, "status")).output
    planned = await command(fresh, "plan", "--again")
    assert "history becomes a hypertable of TimescaleDB" in planned.output
    assert "which rewrites 30 rows" in planned.output
    applied = await command(fresh, "apply", "--again")
    assert applied.code == 0, applied.progress
    async with connected(fresh) as connection:
        assert await connection.fetchval("select count(*) from agent.event_hist") == 30
        assert await connection.fetchval("select count(*) > 1 from timescaledb_information.chunks")
    assert "history stays as it is (hypertable)" in (await command(fresh, "plan", "--again")).output


@pytest.mark.parametrize(
    ("code", "theirs", "mended"),
    [
        ("22008", "update agent.event_hist set event_ts = '294270-01-01'", "delete from agent.event_hist"),
        ("TS103", "create unique index theirs on agent.event_hist (id)", "drop index agent.theirs"),
    ],
)
async def test_what_refuses_the_conversion_is_named_and_blocks_no_upgrade(
    fresh: str, code: str, theirs: str, mended: str
) -> None:
    assert (await command(fresh, "apply")).code == 0
    async with connected(fresh) as connection:
        await connection.execute("drop extension timescaledb cascade")
    async with connected(fresh) as connection:
        await connection.execute(FINISHED, "1760000000.000100")
        await connection.execute(theirs)
        applied = await command(fresh, "apply", "--again")
        assert applied.code == 0, applied.progress
        (warning,) = [line for line in applied.progress.splitlines() if "history stays a plain table" in line]
        assert re.search(
            f"SQLSTATE {code}: .+ Latest row: event 1, of .+ Correct the cause; apply --again", warning
        ), warning
        await connection.execute(mended)
    assert (await command(fresh, "apply", "--again")).code == 0
    assert "history    hypertable" in (await command(fresh, "status")).output


WEEKS = """
insert into agent.event_hist (id, event_ts, attempts, vt, claimed, event, kind, item_key, group_key, head, lane
, enqueued_at, enqueued_by, retrying, errors, outcome, finished_at)
select n, moment, 1, moment, '{}', '{}', 'job', 'old' || n, 'group', true, 0
, moment, 'test', false, '[]', 'failed', moment
from generate_series(40 * $1::int, 40 * $2::int - 1) as n
, lateral (select now() - n / 40 * interval '7 days' as moment) as ended
"""
FAILED = "select id from agent.list_jobs('{failed}')"


def event(number: int) -> str:
    """An event that has just happened, as an SQL literal."""
    return f"jsonb '{envelope(f'Ev{number}', event_ts=f'{time.time():.6f}')}'"


async def cost(connection: Connection, statement: str) -> tuple[int, int]:
    """How many chunks a statement opens and how many pages it reads, once its plans are made; undone afterwards."""
    for _ in range(2):
        transaction = connection.transaction()
        await transaction.start()
        plan = await connection.fetchval(f"explain (analyze, buffers, timing off, format json) {statement}")
        opened = await connection.fetchval(
            "select count(distinct relation) from pg_locks join pg_inherits on inhrelid = relation"
            " where pid = pg_backend_pid() and inhparent = 'agent.event_hist'::regclass"
        )
        await transaction.rollback()
    top = json.loads(plan)[0]["Plan"]
    return opened, top["Shared Hit Blocks"] + top["Shared Read Blocks"]


async def test_inserts_and_pages_cost_the_same_however_many_chunks_history_has(fresh: str) -> None:
    await command(fresh, "apply")
    statements = {
        "insert": f"select agent.insert_event({event(1)})",
        "batch": f"select * from agent.insert_events(array[{event(2)}, {event(3)}])",
        "page": FAILED,
        "page of a group": "select id from agent.list_jobs(_key => 'group')",
    }
    async with connected(fresh) as connection:
        await connection.execute("insert into agent.kind (kind) values ('job')")
        await connection.execute(WEEKS, 0, 1)
        short = {name: await cost(connection, statement) for name, statement in statements.items()}
        await connection.execute(WEEKS, 1, 30)
        await connection.execute("analyze agent.event_hist")
        long = {name: await cost(connection, statement) for name, statement in statements.items()}
        chunks = await connection.fetchval("select count(*) from timescaledb_information.chunks")
        found = [row["id"] for row in await connection.fetch(f"{FAILED} limit 3")]
    assert chunks >= 30
    assert found == [39, 38, 37]
    for name, (opened, pages) in long.items():
        assert opened <= 4, (name, opened)
        assert pages <= 1.3 * short[name][1] + 50, (name, short[name], pages)


@pytest.mark.parametrize("hypertable", [True, False])
async def test_history_is_dropped_by_age_in_either_form(fresh: str, hypertable: bool) -> None:
    assert (await command(fresh, "apply")).code == 0
    if not hypertable:
        async with connected(fresh) as connection:
            await connection.execute("drop extension timescaledb cascade")
    async with connected(fresh) as connection:
        for age in ("90 days", "1 minute"):
            moment = await connection.fetchval(
                "select extract(epoch from now() - $1::text::interval)::text", age
            )
            await connection.execute(FINISHED, moment)
        assert await connection.fetchval("select count(*) from agent.event_hist") == 2
        assert await drop_history(connection, "30 days") == (1, False)
        assert await connection.fetchval("select count(*) from agent.event_hist") == 1


async def test_a_role_without_the_extension_gets_a_plain_history(timescaledb: Server, fresh: str) -> None:
    name = fresh.partition("?")[0].rpartition("/")[2]
    async with connected(urlsplit(timescaledb.admin)._replace(path=f"/{name}").geturl()) as admin:
        await admin.execute(
            f'create schema agent authorization {OWNER}; alter database "{name}" owner to postgres'
        )
        applied = await command(fresh, "apply")
        assert applied.code == 0, applied.progress
        assert (
            "notice: TimescaleDB is available, but this role may not create the extension" in applied.progress
        )
        assert "history    table" in (await command(fresh, "status")).output
        await admin.execute("create extension timescaledb schema public")
    assert (await command(fresh, "apply", "--again")).code == 0
    assert "history    hypertable" in (await command(fresh, "status")).output


async def test_a_server_that_has_not_loaded_the_extension_keeps_a_plain_history() -> None:
    if not engine_answers():
        lacking("no Docker engine answers")
    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
    from testcontainers.community.postgres import PostgresContainer  # noqa: PLC0415 - slow to import, not always needed

    container = PostgresContainer(IMAGE, username="postgres", password=secrets.token_hex(8), driver=None)
    with container.with_command(["postgres", "-c", "shared_preload_libraries="]) as running:
        admin = running.get_connection_url()
        async with connected(admin) as administrator:
            await create_roles(administrator)
            # The image's own template has the extension, which ends every session if it was not loaded.
            await administrator.execute(f"create database plain owner {OWNER} template template0")
        dsn = uri_of(admin, role=OWNER, database="plain")
        applied = await command(dsn, "apply")
        assert applied.code == 0, applied.progress
        assert "history    table" in (await command(dsn, "status")).output
        assert "history stays as it is (table)" in (await command(dsn, "plan", "--again")).output
