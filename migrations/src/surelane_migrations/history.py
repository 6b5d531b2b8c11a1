"""Read whether history is a hypertable, and whether the next migration converts it. Scripts convert it."""

from dataclasses import dataclass

from surelane_migrations.database import Connection

# The extension's settings exist only if the server loaded it at its start. If its files are there but not
# loaded, `create extension` ends the session.
_TIMESCALEDB = """
select (select extversion from pg_extension where extname = 'timescaledb') as installed
, (select default_version from pg_available_extensions where name = 'timescaledb') as available
, current_setting('timescaledb.max_background_workers', true) is not null as loaded
, exists (select from pg_class where relnamespace = (select oid from pg_namespace where nspname = 'agent')
  and relname = 'event_hist') as history
"""
_IS_HYPERTABLE = """
select exists (select from timescaledb_information.hypertables
  where hypertable_schema = 'agent' and hypertable_name = 'event_hist')
"""


@dataclass(frozen=True)
class History:
    """The form of history and TimescaleDB's versions. ``form`` is ``table``, ``hypertable``, or ``None`` if absent."""

    form: str | None
    installed: str | None
    available: str | None

    @property
    def converts(self) -> bool:
        """Whether the next migration turns the table into a hypertable."""
        return self.form == "table" and bool(self.installed or self.available)


async def read_history(connection: Connection) -> History:
    """Read the state of the extension and of ``agent.event_hist``."""
    row = await connection.fetchrow(_TIMESCALEDB)
    if row is None:
        return History(None, None, None)
    hypertable = bool(row["installed"]) and await connection.fetchval(_IS_HYPERTABLE)
    form = ("hypertable" if hypertable else "table") if row["history"] else None
    return History(form, row["installed"], row["available"] if row["loaded"] else None)


async def count_history(connection: Connection) -> int:
    """Count the rows that a conversion rewrites."""
    return int(await connection.fetchval("select count(*) from agent.event_hist"))
