"""Give each benchmark a server, the amount to measure, and fresh databases."""

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
    """The URI of a superuser."""

    worker: str
    """The URI of the worker's login role."""

    operator: str
    """The URI of the operator's login role."""


@dataclass(frozen=True)
class Bench:
    """A run of the benchmarks."""

    server: Server
    template: str
    """A migrated database without events."""

    quick: bool
    rounds: int
    history: int | None = None
    """Events of history behind the operator's page, where the run names a number."""

    weeks: int | None = None
    """Over how many weeks that history goes, in a chunk of TimescaleDB's for each; ``None``: 90 days, in one table."""

    minutes: float | None = None
    """How long the operator's pages stay open, where the run names a number."""

    def size(self, full: int, quick: int) -> int:
        """Return the amount to measure: ``quick`` for a run that only shows that the benchmark works, else ``full``."""
        return quick if self.quick else full

    @asynccontextmanager
    async def database(self, *, empty: bool = False) -> AsyncIterator[Database]:
        """Make a fresh database for the length of the block: migrated or, for a peer, ``empty``."""
        async with self.server.fresh("template0" if empty else self.template) as name:
            server = self.server
            worker, operator = (server.uri(name, f"surelane_{login}") for login in ("worker", "operator"))
            yield Database(name, server.admin_uri(name), worker, operator)

    @staticmethod
    def say(line: str) -> None:
        """Print a line about a measurement."""
        print(f"    {line}", file=sys.stderr, flush=True)


@asynccontextmanager
async def at_rest(database: Database) -> AsyncIterator[Connection]:
    """Vacuum, analyze and checkpoint a filled database; yield an administrator's connection to it."""
    async with connected(database.admin) as connection:
        await connection.execute("vacuum (analyze)")
        await connection.execute("checkpoint")
        yield connection
