"""On a database with other defaults than PostgreSQL's, every connection of ours sets what our SQL relies on."""

import re
import secrets
from datetime import timedelta

import asyncpg
import pytest
from pydantic import SecretStr

from surelane.calls import Connection, PooledConnection
from surelane_migrations import database as migrations_database
from surelane_migrations.files import PACKAGED, discover
from surelane_operator.doctor import server as operator_server
from surelane_service.common.connecting import SESSION
from surelane_service.pool import Listener, opened_pool
from tests.databases import Server
from tests.sql.migrations import command, connected

SETTINGS = {
    "default_transaction_isolation": "'serializable'",
    "default_transaction_deferrable": "on",
    "standard_conforming_strings": "off",
    "search_path": "''",
    "TimeZone": "'Europe/Berlin'",
    "DateStyle": "'SQL, DMY'",
    "IntervalStyle": "'sql_standard'",
    "bytea_output": "'escape'",
    "extra_float_digits": "-15",
    "quote_all_identifiers": "on",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "row_security": "on",
    "statement_timeout": "'150ms'",
    "lock_timeout": "'90ms'",
    "transaction_timeout": "'900ms'",
}
"""What a database may have for every session, in place of what our SQL relies on."""
BOUNDS = {"statement_timeout", "lock_timeout", "transaction_timeout"}


def name_of(uri: str) -> str:
    return uri.partition("?")[0].rpartition("/")[2]


async def set_all(uri: str) -> None:
    """Give a database all of :data:`SETTINGS` that its server knows."""
    name = name_of(uri)
    async with connected(uri) as owner:
        for setting, value in SETTINGS.items():
            if setting != "transaction_timeout" or owner.get_server_version() >= (17,):
                await owner.execute(f"alter database {name} set {setting} = {value}")


async def found(connection: Connection | PooledConnection, names: set[str]) -> dict[str, str]:
    return {name: await connection.fetchval("select current_setting($1)", name) for name in names}


async def test_each_connection_of_ours_sets_what_its_sql_relies_on(database: str) -> None:
    await set_all(database)
    expected = {name: value for name, value in SESSION.items() if name not in BOUNDS}
    within = timedelta(minutes=1)
    pool = opened_pool(SecretStr(database), service="test", max_size=1, statement_timeout=within)
    async with pool as opened, opened.acquire() as connection:
        assert await found(connection, set(expected)) == expected
        assert await connection.fetchval("show statement_timeout") == "1min"
        await connection.execute("select pg_sleep(1)", timeout=60)
    listener = Listener(database, service="test", within=within)
    async with listener.connection() as connection:
        assert await found(connection, set(expected)) == expected
    await listener.close()
    for opening in (operator_server.connected, migrations_database.connected):
        async with opening(database) as connection:
            bounds = dict.fromkeys(BOUNDS & set(await names(connection)), "0")
            assert await found(connection, {*expected, *bounds}) == {**expected, **bounds}


async def names(connection: Connection) -> list[str]:
    return [row[0] for row in await connection.fetch("select name from pg_settings")]


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
async def test_a_database_not_in_utf8_is_refused_and_the_advice_makes_one(
    server: Server, encoding: str
) -> None:
    name = f"surelane_test_{secrets.token_hex(6)}"
    try:
        await server.execute(
            f"create database {name} owner surelane encoding '{encoding}' locale 'C' template template0"
        )
        applied = await command(server.uri(name), "apply")
        assert applied.code == 4, applied.progress
        assert f"{name} has the encoding {encoding}" in applied.progress
        advice = applied.progress[applied.progress.index("create database surelane owner") :]
        await server.execute(f"drop database {name}")
        await server.execute(advice.replace("database surelane", f"database {name}"))
        assert (await command(server.uri(name), "plan")).code == 0
    finally:
        await server.execute(f"drop database if exists {name}")


OTHERS = "create schema agent; create table agent.memory (id int); create function agent.one() returns int return 1"


@pytest.mark.parametrize("also", ["", "; create table agent.version (); create table agent.migration ()"])
async def test_a_schema_of_another_program_is_refused(empty_database: str, also: str) -> None:
    async with connected(empty_database) as owner:
        await owner.execute(OTHERS + also)
        applied = await command(empty_database, "apply")
        assert (applied.code, "is another program's: it has memory, " in applied.progress) == (7, True)
        await owner.execute("alter schema agent rename to other_agent; create schema agent")
        applied = await command(empty_database, "apply")
        assert applied.code == 0, applied.progress


async def test_rights_that_are_not_ours_are_taken_away_and_named(empty_database: str, server: Server) -> None:
    role = f"Read Only {secrets.token_hex(4)}"
    given = f'grant execute on functions to "{role}"', f'grant select on tables to "{role}"'
    await server.execute(f'create role "{role}"')
    try:
        async with connected(empty_database) as owner:
            for each in given:
                await owner.execute(f"alter default privileges {each}")
            applied = await command(empty_database, "apply")
            assert f'role "{role}" has no rights to table event any more' in applied.progress
            assert await taken(empty_database, role)
            await owner.execute(f'grant usage on schema agent to "{role}"')
            await owner.execute(
                f'grant select (id) on agent.event to "{role}"; grant all on agent.kind to public'
            )
            await owner.execute("grant execute on function agent.settle to agent_ingest with grant option")
            assert (await command(empty_database, "verify")).code == 7
            assert (await command(empty_database, "apply", "--again")).code == 0
            assert await taken(empty_database, role)
    finally:
        admin = await asyncpg.connect(server.admin, database=name_of(empty_database))
        await admin.execute(f'drop owned by "{role}"; drop role "{role}"')
        await admin.close()


async def taken(uri: str, role: str) -> bool:
    """Return whether a role may do nothing in the schema, and the schema is as this release makes it."""
    verified = await command(uri, "verify")
    assert (verified.code, verified.output) == (0, ""), verified.output[:2000]
    async with connected(uri) as owner:
        may = "has_schema_privilege($1, 'agent', 'usage') or has_table_privilege($1, 'agent.event', 'select')"
        return not await owner.fetchval(f"select {may}", role)


async def test_every_table_can_be_published(database: str, server: Server) -> None:
    """A publication of all tables refuses updates and deletes of a table that has no replica identity."""
    admin = await asyncpg.connect(server.admin, database=name_of(database))
    await admin.execute("create publication everything for all tables")
    await admin.close()
    async with connected(database) as owner:
        without = await owner.fetch(
            "select relname from pg_class as c where relnamespace = 'agent'::regnamespace and relkind in ('r', 'p')"
            " and relreplident in ('d', 'n')"
            " and not exists (select from pg_index where indrelid = c.oid and indisprimary)"
        )
        assert without == []
    applied = await command(database, "apply", "--again")
    assert applied.code == 0, applied.progress


def test_no_script_depends_on_how_strings_are_read() -> None:
    """PL/pgSQL reads a body's strings by its caller's ``standard_conforming_strings``: a backslash needs ``E''``."""
    for script in discover(PACKAGED).idempotent:
        code = re.sub(r"--.*", "", script.sql)
        found = [
            text for text in re.findall(r"(?<!\w)E?'(?:[^']|'')*'", code) if "\\" in text and text[0] != "E"
        ]
        assert found == [], script.label


NOTHING = "create function public.nothing() returns trigger language plpgsql as $$ begin return null; end $$"
TRIGGER = "create trigger theirs before {} execute function public.nothing()"
MEMBER = "select agent.enqueue('job', _group_key => 'g');"
AT_ONCE = "set constraints all immediate"
REFUSING = [
    (
        "create unique index their_kind on agent.event (kind)",
        "select agent.enqueue('job'), agent.enqueue('job', _item_key => 'a')",
    ),
    # A batch without keys, which looks for no duplicates.
    (
        "create unique index their_kind on agent.event (kind)",
        """select agent.enqueue_jobs('[{"kind": "job"}, {"kind": "job"}]')""",
    ),
    (
        TRIGGER.format("insert on agent.event for each row"),
        """select agent.insert_events(array['{"type": "app_mention"}'::jsonb])""",
    ),
    # The next head of a group: a member's row changes.
    (
        TRIGGER.format("update on agent.event for each row when (new.head)"),
        f"{MEMBER} {MEMBER} delete from agent.event where head",
    ),
    # A member without a head, as the transaction commits.
    (
        "create unique index their_head on agent.event ((1)) where head",
        f"{MEMBER} {MEMBER} update agent.event set head = false; select agent.enqueue('job'); {AT_ONCE}",
    ),
]


@pytest.mark.parametrize(("added", "calls"), REFUSING, ids=["index", "batch", "insert", "update", "commit"])
async def test_what_others_added_is_named_no_call_spins(queue: Connection, added: str, calls: str) -> None:
    transaction = queue.transaction()
    await transaction.start()
    try:
        await queue.execute(f"set local statement_timeout = '30s'; {NOTHING}; {added}")
        with pytest.raises(asyncpg.UniqueViolationError, match="their"):
            await queue.execute(calls)
    finally:
        await transaction.rollback()
