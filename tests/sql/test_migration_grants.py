"""A migration creates the roles of a new server, or says that it may not."""

import asyncio

import pytest

from surelane_dev.accounts import OWNER, uri_of
from surelane_dev.postgres import embedded
from tests.databases import CRASHABLE
from tests.sql.migrations import command, connected, server_directory


@pytest.mark.slow
async def test_without_the_right_to_create_roles_the_rest_is_there_and_the_roles_come_with_the_right() -> (
    None
):
    """Roles belong to the whole server: all migrations that have the right create the same three at once."""
    names = [f"d{number}" for number in range(4)]
    with server_directory() as directory:
        async with embedded(directory, on_line=print, settings=CRASHABLE) as postgres:
            async with connected(postgres.uri) as admin:
                await admin.execute(f"create role {OWNER} login")
                for name in names:
                    await admin.execute(f"create database {name} owner {OWNER}")
                first, *_ = dsns = [uri_of(postgres.uri, role=OWNER, database=name) for name in names]
                applied = await command(first, "apply")
                assert applied.code == 0, applied.progress
                assert (
                    "notice: role agent_ingest is missing and this role may not create it" in applied.progress
                )
                verified = await command(first, "verify")
                assert verified.code == 7
                assert verified.output
                assert all(line.startswith("missing:    grant ") for line in verified.output.splitlines())
                await admin.execute(f"alter role {OWNER} createrole")
            finished = await asyncio.gather(*(command(dsn, "apply", "--again") for dsn in dsns))
            assert [each.code for each in finished] == [0] * 4, [each.progress for each in finished]
            for dsn in dsns:
                verified = await command(dsn, "verify")
                assert (verified.code, verified.output) == (0, "")
