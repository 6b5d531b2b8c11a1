"""Give each test a database of its own, copied from a migrated one whose clock can be set."""

import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg
from anyio.from_thread import BlockingPortal, start_blocking_portal

from surelane.calls import Connection
from surelane_dev.accounts import OWNER, create_roles, uri_of
from surelane_dev.postgres import embedded
from surelane_migrations.files import PACKAGED, discover
from surelane_migrations.runner import Migration

SERVER = "SURELANE_TEST_DATABASE_URL"
"""Names a server to use in place of the embedded one, as a superuser."""

UNSAFE = dict.fromkeys(("fsync", "synchronous_commit", "full_page_writes", "autovacuum", "jit"), "off")
"""A test's data need not survive a crash of the server."""

MEMORY = "/dev/shm"  # noqa: S108 - a directory with a random name is made below it
ENOUGH = 2**30
"""Bytes, more than the server of a session writes."""

CLOCK = """
create table agent.test_clock (ahead interval not null);
insert into agent.test_clock values ('0');
grant select on agent.test_clock to public;
create or replace function agent.clock() returns timestamptz language sql volatile parallel safe
return pg_catalog.clock_timestamp() + (select ahead from agent.test_clock);
"""
"""Every function of the queue reads its time from ``agent.clock()``. Tests set how far it is ahead."""


@dataclass(frozen=True)
class PostgresServer:
    """A running server with a database to copy. A thread of its own serves calls from tests that cannot await."""

    admin: str
    """The URI of a superuser."""
    template: str
    portal: BlockingPortal

    def uri(self, database: str, role: str) -> str:
        """Return the URI of a database for one of our roles."""
        return uri_of(self.admin, role=role, database=database)

    @asynccontextmanager
    async def database(self) -> AsyncIterator[str]:
        """Copy the database; yield the name of the copy. Drop it with its sessions at the end."""
        name = f"surelane_test_{secrets.token_hex(6)}"
        async with connected(self.admin) as admin:
            await _copy(admin, name, self.template)
            try:
                yield name
            finally:
                await admin.execute(f'drop database if exists "{name}" with (force)')


@contextmanager
def running_server() -> Iterator[PostgresServer]:
    """Run a server for the session, or use the one that ``SURELANE_TEST_DATABASE_URL`` names.

    It runs in the event loop of a thread, because each test may have a loop of its own.
    """
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(_server()) as admin,
        portal.wrap_async_context_manager(_template(admin)) as template,
    ):
        yield PostgresServer(admin, template, portal)


@asynccontextmanager
async def connected(uri: str, database: str | None = None) -> AsyncIterator[Connection]:
    """Connect for the length of the block, to another database than the URI's if one is given."""
    connection = await asyncpg.connect(uri, database=database)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def _server() -> AsyncIterator[str]:
    if given := os.environ.get(SERVER):
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="surelane-testing-", dir=_memory()) as directory:
        async with embedded(Path(directory), on_line=print, settings=UNSAFE) as postgres:
            yield postgres.uri


def _memory() -> str | None:
    """Return a directory in memory, where copying a database takes a tenth of the time; ``None``: the default one."""
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK):
        return None
    status = os.statvfs(MEMORY)
    return MEMORY if status.f_bavail * status.f_frsize >= ENOUGH else None


@asynccontextmanager
async def _template(uri: str) -> AsyncIterator[str]:
    name = f"surelane_template_{secrets.token_hex(6)}"
    async with connected(uri) as admin:
        # Runs that share a server create the roles in turn, because simultaneous grants of one role fail.
        await admin.execute("select pg_advisory_lock(hashtext('surelane test roles'))")
        await create_roles(admin)
        await admin.execute("select pg_advisory_unlock_all()")
        await admin.execute(f'create database "{name}" owner {OWNER}')
        try:
            await Migration(discover(PACKAGED)).apply(uri_of(uri, role=OWNER, database=name))
            async with connected(uri_of(uri, role=OWNER, database=name)) as owner:
                await owner.execute(CLOCK)
            yield name
        finally:
            await admin.execute(f'drop database if exists "{name}" with (force)')


async def _copy(admin: Connection, name: str, template: str) -> None:
    """Copy files rather than write the copy to the log: this takes half the time."""
    await admin.execute(f'create database "{name}" owner {OWNER} template "{template}" strategy file_copy')
