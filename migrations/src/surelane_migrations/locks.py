"""Take the two locks of a migration: an advisory lock, then ``agent.migration`` itself.

The advisory lock excludes other runners, even before there is a schema. The table lock excludes programs that do
not know the advisory lock.
"""

import asyncpg

from surelane_migrations.database import Connection
from surelane_migrations.errors import LockedError
from surelane_migrations.migration_settings import LockSettings

ADVISORY_KEY = 31321898691465844

_HOLDERS = """
select l.pid, a.application_name, a.usename, host(a.client_addr) as address, a.xact_start
from pg_locks l left join pg_stat_activity a on a.pid = l.pid
where l.granted and l.database = (select oid from pg_database where datname = current_database())
"""
_HOLDER = f"""{_HOLDERS}
and l.locktype = 'advisory' and l.objsubid = 1 and ((l.classid::int8 << 32) | l.objid::int8) = $1
"""
_TABLE_HOLDER = f"""{_HOLDERS}
and l.locktype = 'relation' and l.pid <> pg_backend_pid()
and l.mode not in ('AccessShareLock', 'RowShareLock') and l.relation = to_regclass('agent.migration')
limit 1
"""
TRY_ADVISORY_LOCK = "select pg_try_advisory_xact_lock($1)"
"""It does not wait. The lock is released when the transaction ends, in any way."""
TABLE_LOCK = "lock table agent.migration in exclusive mode"
"""It locks against everything but reading, and waits for ``lock_timeout`` at most."""


async def advisory_holder(connection: Connection) -> str:
    return _describe(await connection.fetchrow(_HOLDER, ADVISORY_KEY))


async def table_locked(connection: Connection, settings: LockSettings) -> LockedError:
    """Return the error for a table lock that timed out; it names the session that has the lock, if still there."""
    holder = _describe(await connection.fetchrow(_TABLE_HOLDER))
    return LockedError(
        f"agent.migration was locked for {settings.timeout.total_seconds():g} s by {holder}. Nothing was "
        "applied. End that session, or raise SURELANE_MIGRATION_LOCK_TIMEOUT, and run this again."
    )


def _describe(row: asyncpg.Record | None) -> str:
    if row is None:
        return "a session that has just gone"
    since = (
        f"{row['xact_start']:%Y-%m-%d %H:%M:%S %Z}" if row["xact_start"] else "a time hidden from this role"
    )
    address = f" from {row['address']}" if row["address"] else ""
    name = row["application_name"] or "no application name"
    return f"process {row['pid']} ({name}, role {row['usename'] or 'hidden'}{address}, since {since})"
