"""Each role may do exactly what is documented. The tests log in as each role."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from surelane.calls import Connection
from surelane_dev.accounts import OWNER, uri_of
from surelane_dev.postgres import embedded
from tests.databases import CRASHABLE, as_role
from tests.sql.migrations import command, connected, server_directory
from tests.sql.test_roles import INSTALLING, SEALING

EXECUTABLE = """
select distinct proname::text from pg_proc
where pronamespace = 'agent'::regnamespace and has_function_privilege(current_user, oid, 'execute') order by 1
"""
READABLE = """
select c.oid::regclass::text from pg_class c where relnamespace = 'agent'::regnamespace and relkind in ('r', 'v')
and has_any_column_privilege(current_user, c.oid, 'select, insert, update, references') order by 1
"""
INGEST = sorted(
    {
        "answer_dispatch",
        "fire_trigger",
        "insert_event",
        "insert_events",
        "insert_requests",
        "measure_queue",
        "note_report",
        "own_timeline",
        "schema_version",
        "take_answers",
        "wake_connected",
    }
    | INSTALLING
    | SEALING
)


@pytest.fixture
def directory() -> Iterator[Path]:
    """Make a directory for the data of a test's own server."""
    with server_directory() as made:
        yield made


async def names(connection: Connection, query: str) -> list[str]:
    """Return the first column of a query's rows."""
    return [row[0] for row in await connection.fetch(query)]


async def test_ingest_can_insert_and_read_the_version_and_nothing_else(database: str) -> None:
    async with connected(as_role(database, "surelane_ingest")) as ingest:
        assert await names(ingest, EXECUTABLE) == INGEST
        assert await names(ingest, READABLE) == []
        assert await ingest.fetchval(
            """select agent.insert_event('{"type": "app_mention", "ts": "1760000000.1"}')"""
        )
        assert await ingest.fetchval("select version from agent.schema_version()")
        for refused in (
            "select * from agent.claim_event()",
            "select * from agent.event",
            "delete from agent.event",
            "select agent.delete_event(1)",
            "truncate agent.event_hist",
            "update agent.version set version = '9.9.9'",
            "create table agent.mine ()",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await ingest.execute(refused)


async def test_a_worker_can_claim_and_settle_and_touches_no_table(database: str) -> None:
    async with connected(as_role(database, "surelane_ingest")) as ingest:
        await ingest.execute("""select agent.insert_event('{"type": "app_mention", "ts": "1760000000.1"}')""")
    async with connected(as_role(database, "surelane_worker")) as worker:
        allowed = await names(worker, EXECUTABLE)
        assert {
            "claim_event",
            "claim_events",
            "complete_events",
            "settle",
            "delete_expired_events",
        } <= set(allowed)
        assert not {"insert_event", "insert_events", "fire_trigger", "forget_steps"} & set(allowed)
        claimed = await worker.fetchval("select id from agent.claim_event()")
        await worker.execute("select agent.delete_event($1)", claimed)
        for refused in (
            "select * from agent.event",
            "delete from agent.event_hist",
            "select agent.forget_steps('{1}')",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await worker.execute(refused)


async def test_everybody_else_can_do_nothing(database: str) -> None:
    async with connected(database) as owner:
        granted = await names(
            owner,
            "select proname::text from pg_proc, aclexplode(coalesce(proacl, acldefault('f', proowner))) a "
            "where pronamespace = 'agent'::regnamespace and a.grantee = 0",
        )
        assert granted == []
        assert not await owner.fetchval("select has_schema_privilege('public', 'agent', 'usage')")


async def test_every_function_that_runs_as_its_owner_pins_its_search_path(database: str) -> None:
    async with connected(database) as owner:
        loose = await names(
            owner,
            "select oid::regprocedure::text from pg_proc where pronamespace = 'agent'::regnamespace and prosecdef and "
            "not exists (select from unnest(proconfig) c where c like 'search_path=%' and c not like '%public%')",
        )
    assert loose == []


async def test_an_object_in_public_is_never_picked_up(database: str) -> None:
    """With any search path of the caller, the functions use PostgreSQL's and the schema's own objects."""
    async with connected(database) as owner:
        await owner.execute("grant create on schema public to surelane_ingest")
    async with connected(as_role(database, "surelane_ingest")) as ingest:
        await ingest.execute(
            """
            create function public.trap() returns int language plpgsql as $$ begin raise 'trapped'; end $$;
            create function public.trap(jsonb, text) returns text language sql as 'select public.trap()::text';
            create operator public.->> (leftarg = jsonb, rightarg = text, function = public.trap);
            create function public.clock_timestamp() returns timestamptz language sql
            as 'select public.trap()::text::timestamptz';
            create table public.event (id text);
            create table pg_temp.event (id text);
            set search_path = public, pg_temp, pg_catalog, agent;
            """
        )
        with pytest.raises(asyncpg.RaiseError, match="trapped"):
            await ingest.fetchval("""select '{}'::jsonb ->> 'a'""")
        assert await ingest.fetchval(
            """select agent.insert_event('{"type": "app_mention", "ts": "1760000000.1"}')"""
        )


async def test_databases_of_one_server_migrate_at_the_same_moment(directory: Path) -> None:
    """Roles belong to the whole server: on a new one, all of these create the same three."""
    async with embedded(directory, on_line=print, settings=CRASHABLE) as postgres:
        async with connected(postgres.uri) as admin:
            await admin.execute(f"create role {OWNER} login createrole")
            for number in range(4):
                await admin.execute(f"create database d{number} owner {OWNER}")
        dsns = [uri_of(postgres.uri, role=OWNER, database=f"d{number}") for number in range(4)]
        finished = await asyncio.gather(*(command(dsn, "apply") for dsn in dsns))
        assert [runner.code for runner in finished] == [0] * 4, [runner.progress for runner in finished]
        for dsn in dsns:
            verified = await command(dsn, "verify")
            assert (verified.code, verified.output) == (0, "")


async def test_without_the_right_to_create_roles_the_rest_is_there(directory: Path) -> None:
    async with embedded(directory, on_line=print, settings=CRASHABLE) as postgres:
        async with connected(postgres.uri) as admin:
            await admin.execute(f"create role {OWNER} login")
            await admin.execute(f"create database surelane owner {OWNER}")
        dsn = uri_of(postgres.uri, role=OWNER, database="surelane")
        applied = await command(dsn, "apply")
        assert applied.code == 0, applied.progress
        assert "notice: role agent_ingest is missing and this role may not create it" in applied.progress
        verified = await command(dsn, "verify")
        assert verified.code == 7
        assert verified.output
        assert all(line.startswith("missing:    grant ") for line in verified.output.splitlines())
        async with connected(postgres.uri) as admin:
            await admin.execute(f"alter role {OWNER} createrole")
        assert (await command(dsn, "apply", "--again")).code == 0
        assert (await command(dsn, "verify")).code == 0
