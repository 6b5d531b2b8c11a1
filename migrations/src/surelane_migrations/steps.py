"""A migration as a list of SQL texts: what the runner executes, and what ``plan`` prints."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from surelane_migrations.files import Script, Scripts
from surelane_migrations.version import Version

SEARCH_PATH = "agent, pg_temp"

BASELINE = f"""\
-- Scripts run the same under all settings of role and database, and never find an object in public.
set local search_path = {SEARCH_PATH};
set local statement_timeout = 0;
-- The runner is never idle for long: a minute without it, and the locks are let go.
set local idle_in_transaction_session_timeout = '1min';
set local client_min_messages = notice;
set local check_function_bodies = on;
"""

BOOTSTRAP = Path(__file__).with_name("bootstrap.sql").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Step:
    """A script, with the statement that records it where it is an incremental one."""

    script: Script
    record: str | None = None


def steps(scripts: Scripts, pending: Iterable[Script], target: Version) -> Iterator[Step]:
    """What to run, in order: pending incremental scripts, then every idempotent one."""
    for script in pending:
        yield Step(script, record_sql(script, target))
    for script in scripts.idempotent:
        yield Step(script)


def record_sql(script: Script, target: Version) -> str:
    """Record an incremental script. All three values have shapes that hold no quote."""
    return (
        "insert into agent.migration (file_name, version, checksum) "  # noqa: S608
        f"values ('{script.file_name}', '{target}', '{script.checksum}');"
    )


def version_sql(target: Version, min_compatible: Version) -> str:
    """Set the schema's version: the last statement of a migration."""
    return (
        "insert into agent.version (version, min_compatible)\n"
        f"values ('{target}', '{min_compatible}')\n"
        "on conflict ((true))\n"
        "do update set version = excluded.version, min_compatible = excluded.min_compatible;"
    )
