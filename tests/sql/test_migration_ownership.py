"""Only the schema's owner may migrate, not a superuser or a member of the owner's role."""

import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from surelane_dev.accounts import uri_of
from surelane_migrations import runner
from surelane_migrations.errors import ForbiddenError, IncompatibleError
from tests.databases import Server, as_role
from tests.old_postgres import OLDEST
from tests.sql.migrations import SECOND, command, migration, state, write_scripts


@pytest.fixture
async def member(server: Server) -> AsyncIterator[str]:
    """Create a login role that is a member of the owner's role, with all its rights."""
    name = f"surelane_member_{secrets.token_hex(4)}"
    await server.execute(f"create role {name} login password 'surelane' in role surelane")
    yield name
    await server.execute(f"drop role {name}")


async def test_a_superuser_who_does_not_own_it_fails(
    server: Server, empty_database: str, tmp_path: Path
) -> None:
    await migration(write_scripts(tmp_path)).apply(empty_database)
    before = await state(empty_database)
    superuser = urlsplit(server.admin)._replace(path=f"/{name_of(empty_database)}").geturl()
    with pytest.raises(ForbiddenError, match=r"belongs to surelane, not to postgres; .*log in as surelane"):
        await migration(tmp_path, SECOND).apply(superuser)
    assert await state(empty_database) == before


async def test_a_member_of_the_owner_is_refused(empty_database: str, member: str, tmp_path: Path) -> None:
    await migration(write_scripts(tmp_path)).apply(empty_database)
    uri = uri_of(empty_database, role=member, database=name_of(empty_database))
    for target in (SECOND, None):  # whether there is something to do or not
        with pytest.raises(ForbiddenError, match=f"belongs to surelane, not to {member}"):
            await (migration(tmp_path, target) if target else migration(tmp_path)).apply(uri)


async def test_a_role_that_may_not_create_the_schema_is_told(empty_database: str, tmp_path: Path) -> None:
    uri = as_role(empty_database, "surelane_worker")
    with pytest.raises(
        ForbiddenError, match=r'grant create on database "surelane_test_\w+" to "surelane_worker"'
    ):
        await migration(write_scripts(tmp_path)).apply(uri)


async def test_a_refusal_has_its_exit_code_and_no_traceback(empty_database: str, tmp_path: Path) -> None:
    await migration(write_scripts(tmp_path)).apply(empty_database)
    worker = as_role(empty_database, "surelane_worker")
    for arguments in (("apply",), ("plan",), ("status",), ("verify", "--scripts", tmp_path)):
        if "verify" in arguments:
            (tmp_path / "schema.txt").write_text("")
        finished = await command(worker, *arguments)
        assert (finished.code, "Traceback" in finished.progress) == (6, False), finished.progress
        assert finished.progress.startswith("error: ")


def name_of(uri: str) -> str:
    """Return the name of a URI's database."""
    return uri.partition("?")[0].rpartition("/")[2]


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
