"""A server with logical replication, and a database of each profile on it."""

import secrets
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from surelane.calls import Connection
from surelane_dev.accounts import OWNER, create_roles
from surelane_dev.postgres import embedded
from surelane_operator.doctor.server import connected
from surelane_service.pool import Listener
from tests.databases import UNSAFE, Server
from tests.neighbours.profiles import Profile


@dataclass(frozen=True)
class Neighbour:
    """A database of a profile, on which Surelane is not yet installed."""

    server: Server
    name: str
    owner: str
    reader: str

    def uri(self, role: str = "") -> str:
        return self.server.uri(self.name, role or self.owner)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Connection]:
        """Connect as the owner, with the settings of the queue's own programs."""
        async with connected(self.uri()) as connection:
            yield connection

    @asynccontextmanager
    async def claiming(self) -> AsyncIterator[Connection]:
        """Connect as a worker does to claim."""
        listener = Listener(self.uri("surelane_worker"), service="test", within=timedelta(seconds=5))
        try:
            async with listener.connection() as connection:
                yield connection
        finally:
            await listener.close()

    async def administer(self, statements: str) -> None:
        """Run what an administrator did there."""
        admin = await asyncpg.connect(self.server.admin, database=self.name)
        try:
            await admin.execute(
                "select;" + statements.format(db=self.name, owner=self.owner, reader=self.reader)
            )
        finally:
            await admin.close()


@pytest.fixture(scope="session")
async def logical_server() -> AsyncIterator[Server]:
    """Run a server of this tier's own: its profiles change what belongs to a whole server."""
    with tempfile.TemporaryDirectory(prefix="surelane-tests-") as directory:
        settings = UNSAFE | {"wal_level": "logical", "max_replication_slots": "10"}
        async with embedded(Path(directory), on_line=print, settings=settings) as postgres:
            admin = await asyncpg.connect(postgres.uri)
            await create_roles(admin)
            await admin.close()
            yield Server(postgres.uri)


@asynccontextmanager
async def neighbour(server: Server, profile: Profile) -> AsyncIterator[Neighbour]:
    """Make a database of a profile; remove it with its roles and slots at the end."""
    word = secrets.token_hex(4)
    owner, reader = f"owner_{word}" if profile.owner else OWNER, f"reader_{word}"
    await server.execute(f"create role {reader} login")
    if profile.owner:
        await server.execute(f"create role {owner} {profile.owner}")
    async with server.fresh() as name:
        await server.execute(f"alter database {name} owner to {owner}")
        try:
            made = Neighbour(server, name, owner, reader)
            await made.administer(profile.before)
            yield made
        finally:
            dropping = (
                "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = "
            )
            await server.execute(f"{dropping}'{name}'")
    for role in {owner, reader} - {OWNER}:
        await server.execute(f"drop role {role}")
