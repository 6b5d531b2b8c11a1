"""Run a PostgreSQL server for the tests, with fresh databases.

The server is the one ``SURELANE_TEST_DATABASE_URL`` names (as a superuser), else TimescaleDB in a container
where a Docker engine answers, else the embedded PostgreSQL. ``SURELANE_TEST_SERVER`` forces ``container``,
``embedded``, or ``oldest``: the oldest supported PostgreSQL.
"""

import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest

from surelane.calls import Connection
from surelane_dev.accounts import OWNER, create_roles, uri_of
from surelane_dev.postgres import embedded
from surelane_migrations.files import PACKAGED, discover
from surelane_migrations.runner import Migration
from tests.needs import engine_answers
from tests.old_postgres import oldest_postgres

os.environ.setdefault(
    "TESTCONTAINERS_RYUK_DISABLED", "true"
)  # we remove our containers ourselves, and its image may be unreachable

SERVER = "SURELANE_TEST_DATABASE_URL"
"""Names a server to use, as a superuser."""
TEMPLATE = "SURELANE_TEST_TEMPLATE"
"""Names a migrated database of that server, in the processes of one run."""

IMAGE = "timescale/timescaledb:2.19.3-pg17"
MEMORY = Path("/dev/shm")
ENOUGH = 2 * 2**30
"""Bytes, more than the servers of a run write."""


def memory_is_free() -> bool:
    """Return whether the tests' files fit into memory, where copying a database takes a tenth of the time."""
    if not os.access(MEMORY, os.W_OK):
        return False
    status = os.statvfs(MEMORY)
    return status.f_bavail * status.f_frsize >= ENOUGH and not status.f_flag & os.ST_NOEXEC


UNSAFE = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_wal_size": "256MB",
    "autovacuum_naptime": "5s",
    "max_connections": "300",
    "max_prepared_transactions": "5",
}
"""A test's data need not survive a crash, and waiting for the disk would take most of a test's time."""

CRASHABLE = {"fsync": "off"}
"""Settings of servers that a test kills. The kernel keeps their writes, so they need not wait for the disk."""

QUICK_LOGIN = "scram_iterations"
"""Lower than usual, because each test logs in a few times. The usual number takes ten milliseconds per login."""

CONTAINED = {**UNSAFE, "shared_buffers": "128MB", "timescaledb.max_background_workers": "0", QUICK_LOGIN: "1"}


_CATALOGUES = {
    "pg_attribute": "attrelid in (select oid from ours)",
    "pg_constraint": "conrelid in (select oid from ours)",
    "pg_index": "indrelid in (select oid from ours)",
    "pg_trigger": "tgrelid in (select oid from ours)",
    "pg_rewrite": "ev_class in (select oid from ours)",
    "pg_sequence": "seqrelid in (select oid from ours)",
    "pg_proc": "pronamespace in (select oid from schemas)",
    "pg_type": "typnamespace in (select oid from schemas)",
    "pg_namespace": "true",
    "pg_extension": "true",
    "pg_default_acl": "true",
    "pg_event_trigger": "true",
    "agent.version": "true",
    "agent.migration": "true",
}

_KEPT = " ".join(
    [
        "with schemas as (select oid from pg_namespace where nspname in ('agent', 'public')),",
        "ours as (select * from pg_class where relnamespace in (select oid from schemas))",
        "select concat_ws(',', (select string_agg(concat(relname, relkind, relowner, relacl, reloptions",
        ", relrowsecurity, relforcerowsecurity, relreplident, relpersistence), ' '",
        "order by oid) from ours),",
        "(select concat(datacl, datconnlimit) from pg_database where datname = current_database()),",
        "(select count(*) from pg_db_role_setting),",
        ", ".join(
            f"(select concat(count(*), ' ', sum(xmin::text::int8)) from {table} where {condition})"
            for table, condition in _CATALOGUES.items()
        ),
        ")",
    ]
)
"""A query that shows whether a schema, its functions, rights and settings are still those of the migrations.

Another transaction writes each change of a catalogue's row. A copied database has the same ones.
"""

_END_SESSIONS = """
do $$
begin
    loop
        perform pg_stat_clear_snapshot();
        perform pg_terminate_backend(pid) from pg_stat_activity
            where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid();
        exit when not found;
        perform pg_sleep(0.005);
    end loop;
end $$
"""

_EMPTY = """
set session_replication_role = replica;
do $$
declare _table regclass;
begin
    for _table in select oid from pg_class where relnamespace = 'agent'::regnamespace and relkind in ('r', 'p')
        and relname not in ('version', 'migration') loop
        execute format('delete from %s', _table);
    end loop;
    insert into agent.measurement default values;
    perform setval(oid::regclass, 1, false) from pg_class
        where relnamespace = 'agent'::regnamespace and relkind = 'S';
end $$
"""


@dataclass(frozen=True)
class Server:
    """A running server. Its names are unique, so that several runs can share one server."""

    admin: str
    """URI of a superuser."""

    def uri(self, database: str, role: str = OWNER) -> str:
        """The URI of a database as ``surelane``, ``surelane_ingest`` or ``surelane_worker``."""
        return uri_of(self.admin, role=role, database=database)

    async def execute(self, statement: str) -> None:
        """Run one statement as the administrator."""
        connection = await asyncpg.connect(self.admin)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    @asynccontextmanager
    async def fresh(self, template: str = "template0") -> AsyncIterator[str]:
        """Copy a database from ``template`` and yield its name. Drop it with its sessions at the end."""
        name = f"surelane_test_{secrets.token_hex(6)}"
        await self.execute(f"create database {name} owner {OWNER} template {template} strategy file_copy")
        try:
            yield name
        finally:
            await self.execute(f"drop database if exists {name} with (force)")


class Databases:
    """Migrated databases that tests use in turn, because making one takes ten times as long as emptying one.

    Nothing of a test reaches the next one. Its sessions end, the rows are the migrations' again, and sequences begin
    again. A database whose schema, rights or settings changed is dropped.
    """

    def __init__(self, server: Server, template: str) -> None:
        self._server = server
        self._template = template
        self._kept = ""
        self._idle: list[tuple[AsyncExitStack, str]] = []
        self._admins: dict[str, Connection] = {}
        """The connections that empty databases: a new one takes five times as long."""

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[str]:
        """Lend a database in the state after the migrations; yield its name."""
        stack, name = self._idle.pop() if self._idle else await self._made()
        yield name
        if await self._emptied(name):
            self._idle.append((stack, name))
        else:
            await stack.aclose()

    async def aclose(self) -> None:
        """Drop the databases."""
        for stack, _ in self._idle:
            await stack.aclose()

    async def _made(self) -> tuple[AsyncExitStack, str]:
        stack = AsyncExitStack()
        name = await stack.enter_async_context(self._server.fresh(self._template))
        if not self._kept:
            self._kept = await (await self._admin(name)).fetchval(_KEPT)
        stack.push_async_callback(self._leave, name)
        return stack, name

    async def _emptied(self, name: str) -> bool:
        admin = await self._admin(name)
        await admin.execute(_END_SESSIONS)
        if await admin.fetchval(_KEPT) != self._kept:
            return False
        await admin.execute(_EMPTY)
        await admin.execute("reset session_replication_role")
        return True

    async def _admin(self, name: str) -> Connection:
        admin = self._admins.get(name)
        if admin is None or admin.is_closed():
            admin = self._admins[name] = await asyncpg.connect(self._server.admin, database=name)
        return admin

    async def _leave(self, name: str) -> None:
        await self._admins.pop(name).close()


def as_role(uri: str, role: str) -> str:
    """Return the URI of the same database for another of our roles."""
    return uri_of(uri, role=role, database=uri.partition("?")[0].rpartition("/")[2])


@asynccontextmanager
async def running_server() -> AsyncIterator[Server]:
    """Run or find the server for this session, with our roles."""
    async with AsyncExitStack() as stack:
        admin = os.environ.get(SERVER)
        if not admin:
            admin = await stack.enter_async_context(_forced_or_found()())
        connection = await asyncpg.connect(admin)
        try:
            # Runs that share a server create the roles one after another, because simultaneous grants of one role fail.
            await connection.execute("select pg_advisory_lock(hashtext('surelane test roles'))")
            await create_roles(connection)
        finally:
            await connection.close()
        yield Server(admin)


def _forced_or_found() -> Callable[[], AbstractAsyncContextManager[str]]:
    servers = {"container": _container, "embedded": _embedded, "oldest": _oldest}
    name = os.environ.get("SURELANE_TEST_SERVER") or ("container" if engine_answers() else "embedded")
    if name not in servers:
        pytest.exit(f"SURELANE_TEST_SERVER is {name!r}; it may be one of {', '.join(servers)}", returncode=2)
    return servers[name]


@asynccontextmanager
async def _embedded() -> AsyncIterator[str]:
    with tempfile.TemporaryDirectory(prefix="surelane-tests-") as directory:
        async with embedded(Path(directory), on_line=_show, settings=UNSAFE) as postgres:
            yield postgres.uri


@asynccontextmanager
async def _oldest() -> AsyncIterator[str]:
    with tempfile.TemporaryDirectory(prefix="surelane-tests-") as directory:
        async with oldest_postgres(Path(directory), UNSAFE) as uri:
            yield uri


@asynccontextmanager
async def _container() -> AsyncIterator[str]:
    from testcontainers.community.postgres import PostgresContainer  # noqa: PLC0415 - slow to import, not always needed

    settings = [part for name, value in CONTAINED.items() for part in ("-c", f"{name}={value}")]
    container = PostgresContainer(
        IMAGE, username="postgres", password=secrets.token_hex(8), dbname="postgres", driver=None
    )
    container.with_tmpfs_mount("/var/lib/postgresql/data")
    container.with_env("POSTGRES_INITDB_ARGS", f"-c {QUICK_LOGIN}={CONTAINED[QUICK_LOGIN]}")
    with container.with_command(["postgres", *settings]) as running:
        yield running.get_connection_url()


@asynccontextmanager
async def migrated_template(server: Server) -> AsyncIterator[str]:
    """Migrate a database as a template, and close its connections so that it can be copied."""
    async with server.fresh() as name:
        await migrate(server.uri(name))
        await server.execute(f"alter database {name} with allow_connections false")
        await server.execute(
            f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'"
        )
        yield name


async def migrate(uri: str) -> None:
    """Migrate a database to this release.

    Raises:
        MigrationError: it failed.
    """
    await Migration(discover(PACKAGED)).apply(uri)


def _show(line: str) -> None:
    print(f"postgres  {line}")  # noqa: T201 - pytest shows it with a failing test
