"""Provide the measured PostgreSQL, and fresh databases on it.

``SURELANE_BENCH_DATABASE_URL`` names it, as a superuser. Without it, the embedded server runs in a temporary directory.
fsync and synchronous_commit are on, PostgreSQL's defaults, because users run with them.
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
from urllib.parse import quote, urlsplit, urlunsplit

import asyncpg

from surelane.calls import Connection
from surelane_dev.accounts import OWNER, create_roles, uri_of
from surelane_dev.postgres import embedded

SETTINGS = {
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "max_connections": "500",
}
"""Settings that prevent checkpoints during a round. Each round begins with a checkpoint of its own."""


@dataclass(frozen=True)
class Server:
    """A running server. ``admin`` is a superuser's URI."""

    admin: str

    def uri(self, database: str, role: str = OWNER) -> str:
        """Return the URI of a database for one of our roles."""
        return uri_of(self.admin, role=role, database=database)

    def admin_uri(self, database: str) -> str:
        """Return the URI of a database for the administrator."""
        return urlunsplit(urlsplit(self.admin)._replace(path=f"/{quote(database)}"))

    async def execute(self, statement: str) -> None:
        """Run one statement as the administrator."""
        async with connected(self.admin) as connection:
            await connection.execute(statement)

    @asynccontextmanager
    async def fresh(self, template: str = "template0") -> AsyncIterator[str]:
        """Copy a database from ``template``; yield its name. Drop it with its sessions at the end."""
        name = f"surelane_bench_{secrets.token_hex(6)}"
        await self.execute(f"create database {name} owner {OWNER} template {template}")
        try:
            yield name
        finally:
            await self.execute(f"drop database if exists {name} with (force)")


@asynccontextmanager
async def connected(uri: str) -> AsyncIterator[Connection]:
    """Open a connection for the length of the block."""
    connection = await asyncpg.connect(uri)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def running_server() -> AsyncIterator[Server]:
    """Run or find the server to measure, and create our roles."""
    async with AsyncExitStack() as stack:
        admin = os.environ.get("SURELANE_BENCH_DATABASE_URL")
        if not admin:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="surelane-bench-"))
            running = embedded(Path(directory), on_line=_complain, settings=SETTINGS)
            admin = (await stack.enter_async_context(running)).uri
        async with connected(admin) as connection:
            await create_roles(connection)
        yield Server(admin)


@asynccontextmanager
async def migrated_template(server: Server) -> AsyncIterator[str]:
    """Migrate a database as a template to copy; yield its name."""
    async with server.fresh() as name:
        await _migrate(server.uri(name))
        yield name


async def _migrate(uri: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "surelane_migrations", "apply"),
        env={**os.environ, "DATABASE_URL": uri},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"the migrations failed with code {process.returncode}:\n{output.decode()}")


def _complain(line: str) -> None:
    print(f"postgres  {line}", file=sys.stderr)
