"""What a database did between two moments: WAL written, transactions committed, rows left dead."""

import asyncio
from dataclasses import dataclass

from surelane.calls import Connection

FLUSHED = 1.2
"""Seconds after which an idle session has reported its statistics."""


@dataclass(frozen=True)
class Usage:
    """Counters of a database; subtract an earlier reading."""

    wal_bytes: int
    commits: int

    def __sub__(self, earlier: "Usage") -> "Usage":
        return Usage(self.wal_bytes - earlier.wal_bytes, self.commits - earlier.commits)


async def usage(connection: Connection) -> Usage:
    """Read the counters of the connection's database. Sessions report when they end, and at most once a second."""
    await asyncio.sleep(FLUSHED)
    row = await connection.fetchrow(
        "select (pg_current_wal_insert_lsn() - '0/0')::int8 as wal, xact_commit "
        "from pg_stat_database where datname = current_database()"
    )
    assert row is not None
    return Usage(row["wal"], row["xact_commit"])


async def dead_rows(connection: Connection, table: str) -> int:
    """Dead rows of a table that no vacuum has removed yet."""
    dead: int = await connection.fetchval(
        "select n_dead_tup from pg_stat_user_tables where relid = $1::regclass", table
    )
    return dead
