"""On a database with other defaults than PostgreSQL's, every connection of ours sets what our SQL relies on."""

from datetime import timedelta

import pytest
from pydantic import SecretStr

from surelane.calls import Connection, PooledConnection
from surelane_migrations import database as migrations_database
from surelane_operator.doctor import server as operator_server
from surelane_service.connecting import SESSION
from surelane_service.intake import Intake
from surelane_service.pool import Listener, opened_pool
from tests.databases import as_role, migrate
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


async def set_all(uri: str) -> None:
    """Give a database all of :data:`SETTINGS` that its server knows."""
    name = uri.partition("?")[0].rpartition("/")[2]
    async with connected(uri) as owner:
        for setting, value in SETTINGS.items():
            if setting != "transaction_timeout" or owner.get_server_version() >= (17,):
                await owner.execute(f"alter database {name} set {setting} = {value}")


async def found(connection: Connection | PooledConnection, names: set[str]) -> dict[str, str]:
    return {name: await connection.fetchval("select current_setting($1)", name) for name in names}


async def test_each_connection_of_ours_sets_what_its_sql_relies_on(database: str) -> None:
    await set_all(database)
    expected = {name: value for name, value in SESSION.items() if name not in BOUNDS}
    within = timedelta(seconds=3)
    pool = opened_pool(SecretStr(database), service="test", max_size=1, statement_timeout=within)
    async with pool as opened, opened.acquire() as connection:
        assert await found(connection, set(expected)) == expected
        assert await connection.fetchval("show statement_timeout") == "3s"
        await connection.execute("select pg_sleep(1)", timeout=5)
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


@pytest.mark.parametrize("before", [True, False], ids=["before installing", "after it"])
async def test_a_schema_is_installed_verified_and_used_on_such_a_database(
    empty_database: str, before: bool
) -> None:
    if not before:
        await migrate(empty_database)
    await set_all(empty_database)
    await migrate(empty_database)
    verified = await command(empty_database, "verify")
    assert (verified.code, verified.output) == (0, ""), verified.output[:2000]
    uri = as_role(empty_database, "surelane_ingest")
    async with opened_pool(SecretStr(uri), service="test", max_size=1) as pool:
        assert await Intake(pool).insert_events(['{"type": "x", "event_id": "Ev1"}'])
