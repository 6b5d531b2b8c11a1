"""Only the schema's owner may migrate. A migration creates the roles of a new server, or says that it may not."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from surelane_dev.accounts import OWNER, uri_of
from surelane_dev.postgres import embedded
from surelane_migrations import runner
from surelane_migrations.errors import ForbiddenError, IncompatibleError
from tests.databases import CRASHABLE, Server, as_role
from tests.old_postgres import OLDEST
from tests.sql.migrations import (
    FIRST,
    SECOND,
    command,
    connected,
    migration,
    refused,
    server_directory,
    write_scripts,
)


@pytest.fixture
async def member(server: Server) -> AsyncIterator[str]:
    """Create a login role that is a member of the owner's role, with all its rights."""
    name = f"surelane_member_{secrets.token_hex(4)}"
    await server.execute(f"create role {name} login password 'surelane' in role surelane")
    yield name
    await server.execute(f"drop role {name}")


async def test_only_the_owner_may_migrate(
    server: Server, empty_database: str, member: str, tmp_path: Path
) -> None:
    """Not a superuser, nor a member of the owner's role, whether there is something to do or not."""
    worker = as_role(empty_database, "surelane_worker")
    told = r'grant create on database "surelane_test_\w+" to "surelane_worker"'
    async with refused(empty_database, ForbiddenError, told):
        await migration(write_scripts(tmp_path)).apply(worker)
    await migration(tmp_path).apply(empty_database)
    name = empty_database.partition("?")[0].rpartition("/")[2]
    for role, uri in (
        ("postgres", urlsplit(server.admin)._replace(path=f"/{name}").geturl()),
        (member, uri_of(empty_database, role=member, database=name)),
    ):
        for target in (SECOND, FIRST):
            says = f"belongs to surelane, not to {role}; .*log in as surelane"
            async with refused(empty_database, ForbiddenError, says):
                await migration(tmp_path, target).apply(uri)
    (tmp_path / "schema.txt").write_text("")
    for arguments in (("apply",), ("plan",), ("status",), ("verify", "--scripts", tmp_path)):
        finished = await command(worker, *arguments)
        assert (finished.code, "Traceback" in finished.progress) == (6, False), finished.progress
        assert finished.progress.startswith("error: ")


async def test_a_server_older_than_the_oldest_supported_is_refused(
    empty_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert runner.OLDEST_SERVER == OLDEST
    scripts = write_scripts(tmp_path)
    monkeypatch.setattr("surelane_migrations.runner.OLDEST_SERVER", 1000)
    for _ in ("a new database", "one that is up to date"):
        with pytest.raises(IncompatibleError, match=r"PostgreSQL \d+\.\d+ is older than 1000, .*Nothing was"):
            await migration(scripts).apply(empty_database)
        with monkeypatch.context() as supported:
            supported.setattr("surelane_migrations.runner.OLDEST_SERVER", OLDEST)
            await migration(scripts).apply(empty_database)


@pytest.mark.slow
async def test_without_the_right_to_create_roles_the_rest_is_there_and_they_come_with_the_right() -> None:
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
