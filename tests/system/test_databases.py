"""Tests get fresh databases, owned by a role that is no superuser."""

import asyncpg

from tests.databases import Server


async def test_an_empty_database_belongs_to_an_ordinary_role(empty_database: str) -> None:
    connected = await asyncpg.connect(empty_database)
    row = await connected.fetchrow(
        "select current_user, rolsuper, pg_get_userbyid(datdba) as owner from pg_roles, pg_database"
        " where rolname = current_user and datname = current_database()"
    )
    await connected.close()
    assert row is not None
    assert tuple(row) == ("surelane", False, "surelane")


async def test_databases_are_dropped_with_their_sessions(server: Server) -> None:
    async with server.fresh() as name:
        connected = await asyncpg.connect(server.uri(name))
    with_admin = await asyncpg.connect(server.admin)
    assert not await with_admin.fetchval("select exists (select from pg_database where datname = $1)", name)
    await with_admin.close()
    connected.terminate()
