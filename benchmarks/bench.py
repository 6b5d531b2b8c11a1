"""Give every benchmark a server, the amount to measure, and databases filled for it."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from benchmarks.server import Server, connected
from surelane.calls import Connection


@dataclass(frozen=True)
class Database:
    """A fresh database."""

    name: str
    admin: str
    """URI of a superuser."""

    worker: str
    """URI of the worker's login role."""


@dataclass(frozen=True)
class Bench:
    """A run of the benchmarks."""

    server: Server
    template: str
    """A migrated database without events."""

    quick: bool
    rounds: int

    def size(self, full: int, quick: int) -> int:
        """How much to measure: ``quick`` shows that the benchmark works, not how fast the queue is."""
        return quick if self.quick else full

    @asynccontextmanager
    async def database(self, *, empty: bool = False) -> AsyncIterator[Database]:
        """A fresh database: migrated, or, for a peer, ``empty``."""
        async with self.server.fresh("template0" if empty else self.template) as name:
            server = self.server
            yield Database(name, server.admin_uri(name), server.uri(name, "surelane_worker"))

    @staticmethod
    def say(line: str) -> None:
        """Print what was just measured."""
        print(f"    {line}", file=sys.stderr, flush=True)


@asynccontextmanager
async def at_rest(database: Database) -> AsyncIterator[Connection]:
    """An administrator's connection to a database that was just filled: vacuumed, analyzed, written down."""
    async with connected(database.admin) as connection:
        await connection.execute("vacuum (analyze)")
        await connection.execute("checkpoint")
        yield connection
