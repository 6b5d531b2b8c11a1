"""Read a database's counters: WAL, commits, dead rows."""

import asyncio
from dataclasses import dataclass

from surelane.calls import Connection

FLUSHED = 1.2
"""Seconds within which an idle session reports its statistics."""


@dataclass(frozen=True)
class Usage:
    """Counters of a database. Subtract an earlier reading to get the usage."""

    wal_bytes: int
    commits: int

    def __sub__(self, earlier: "Usage") -> "Usage":
        return Usage(self.wal_bytes - earlier.wal_bytes, self.commits - earlier.commits)


async def usage(connection: Connection) -> Usage:
    """Read the counters of the connection's database. Sessions report at most once per second, and when they end."""
    await asyncio.sleep(FLUSHED)
    row = await connection.fetchrow(
        "select (pg_current_wal_insert_lsn() - '0/0')::int8 as wal, xact_commit "
        "from pg_stat_database where datname = current_database()"
    )
    assert row is not None
    return Usage(row["wal"], row["xact_commit"])


async def dead_rows(connection: Connection, table: str) -> int:
    """Count a table's dead rows that vacuum has not removed yet."""
    dead: int = await connection.fetchval(
        "select n_dead_tup from pg_stat_user_tables where relid = $1::regclass", table
    )
    return dead
