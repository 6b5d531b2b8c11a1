"""A PostgreSQL server for the tests, and fresh databases on it.

The server is the one ``SURELANE_TEST_DATABASE_URL`` names (as a superuser), else TimescaleDB in a container
where a Docker engine answers, else the embedded PostgreSQL. ``SURELANE_TEST_SERVER`` (``container`` or
``embedded``) forces one of the last two.
"""

import asyncio
import os
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import docker
import pytest
from dev.accounts import OWNER, create_roles, uri_of
from dev.postgres import embedded

os.environ.setdefault(
    "TESTCONTAINERS_RYUK_DISABLED", "true"
)  # we remove our containers; its image may be out of reach

IMAGE = "timescale/timescaledb:2.19.3-pg17"
UNSAFE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "autovacuum_naptime": "5s"}
"""Nobody needs a test's data after a crash, and waiting for disks is most of a test's time."""

CRASHABLE = {"fsync": "off"}
"""For servers that a test kills: the kernel still has what they wrote, so they need not wait for the disk."""

CONTAINER_SETTINGS = {
    **UNSAFE,
    "max_connections": "200",
    "shared_buffers": "128MB",
    "timescaledb.max_background_workers": "0",
}


@dataclass(frozen=True)
class Server:
    """A running server. Names made here are unique, so that several runs can share one server."""

    admin: str
    """URI of a superuser."""

    def uri(self, database: str, role: str = OWNER) -> str:
        """The URI of a database as ``surelane``, ``surelane_ingest`` or ``surelane_worker``."""
        return uri_of(self.admin, role=role, database=database)

    async def execute(self, statement: str) -> None:
        """Runs one statement as the administrator."""
        connection = await asyncpg.connect(self.admin)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    @asynccontextmanager
    async def fresh(self, template: str = "template0") -> AsyncIterator[str]:
        """A database copied from ``template``; yields its name, drops it with its sessions at the end."""
        name = f"surelane_test_{secrets.token_hex(6)}"
        await self.execute(f"create database {name} owner {OWNER} template {template}")
        try:
            yield name
        finally:
            await self.execute(f"drop database if exists {name} with (force)")


def as_role(uri: str, role: str) -> str:
    """The same database's URI as another of our roles."""
    return uri_of(uri, role=role, database=uri.partition("?")[0].rpartition("/")[2])


@asynccontextmanager
async def running_server() -> AsyncIterator[Server]:
    """The server for this session, with our roles."""
    async with AsyncExitStack() as stack:
        admin = os.environ.get("SURELANE_TEST_DATABASE_URL")
        if not admin:
            admin = await stack.enter_async_context(_container() if _use_container() else _embedded())
        connection = await asyncpg.connect(admin)
        try:
            # Runs that share a server make them one after another: grants of one role at once fail.
            await connection.execute("select pg_advisory_lock(hashtext('surelane test roles'))")
            await create_roles(connection)
        finally:
            await connection.close()
        yield Server(admin)


def _use_container() -> bool:
    match os.environ.get("SURELANE_TEST_SERVER", ""):
        case "container":
            return True
        case "embedded":
            return False
        case "":
            return engine_answers()
        case other:
            pytest.exit(
                f"SURELANE_TEST_SERVER is {other!r}; it may be 'embedded' or 'container'", returncode=2
            )


def engine_answers() -> bool:
    """Whether a Docker engine can be used from here."""
    try:
        client = docker.from_env(timeout=5)
    except docker.errors.DockerException:
        return False
    try:
        return bool(client.ping())
    except (docker.errors.DockerException, OSError):
        return False
    finally:
        client.close()


@asynccontextmanager
async def _embedded() -> AsyncIterator[str]:
    with tempfile.TemporaryDirectory(prefix="surelane-tests-") as directory:
        async with embedded(Path(directory), on_line=_show, settings=UNSAFE) as postgres:
            yield postgres.uri


@asynccontextmanager
async def _container() -> AsyncIterator[str]:
    from testcontainers.community.postgres import PostgresContainer  # noqa: PLC0415 - slow to import, not always needed

    settings = [part for name, value in CONTAINER_SETTINGS.items() for part in ("-c", f"{name}={value}")]
    container = PostgresContainer(
        IMAGE, username="postgres", password=secrets.token_hex(8), dbname="postgres", driver=None
    )
    with container.with_command(["postgres", *settings]) as running:
        yield running.get_connection_url()


@asynccontextmanager
async def migrated_template(server: Server) -> AsyncIterator[str]:
    """A database that the real migrations made, to be copied: without connections, so that it can be."""
    async with server.fresh() as name:
        await migrate(server.uri(name))
        await server.execute(f"alter database {name} with allow_connections false")
        await server.execute(
            f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'"
        )
        yield name


async def migrate(uri: str) -> None:
    """Runs ``python -m surelane_migrations apply`` on a database.

    Raises:
        AssertionError: it failed; the message is its output.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "surelane_migrations", "apply"),
        env={**os.environ, "DATABASE_URL": uri},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, (
        f"the migrations failed with code {process.returncode}:\n{output.decode()}"
    )


def _show(line: str) -> None:
    print(f"postgres  {line}")  # noqa: T201 - pytest shows it with a failing test
