"""Build a migration as a list of SQL texts, which the runner executes and ``plan`` prints."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from surelane_migrations.files import Script, Scripts
from surelane_migrations.version import Version

SEARCH_PATH = "agent, pg_temp"

BASELINE = f"""\
-- Scripts run the same under all settings of role and database, and find no object in public.
set local search_path = {SEARCH_PATH};
set local statement_timeout = 0;
-- The runner is never idle for long. After a minute without it, the server releases the locks.
set local idle_in_transaction_session_timeout = '1min';
set local client_min_messages = notice;
set local check_function_bodies = on;
"""

BOOTSTRAP = Path(__file__).with_name("bootstrap.sql").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Step:
    """A script, with the statement that records it if it is incremental."""

    script: Script
    record: str | None = None


def steps(scripts: Scripts, pending: Iterable[Script], target: Version) -> Iterator[Step]:
    """Return the steps in order: pending incremental scripts, then every idempotent one."""
    for script in pending:
        yield Step(script, record_sql(script, target))
    for script in scripts.idempotent:
        yield Step(script)


def record_sql(script: Script, target: Version) -> str:
    """Return the statement that records an incremental script. None of the three values can contain a quote."""
    return (
        "insert into agent.migration (file_name, version, checksum) "  # noqa: S608
        f"values ('{script.file_name}', '{target}', '{script.checksum}');"
    )


def version_sql(target: Version, min_compatible: Version) -> str:
    """Return the last statement of a migration, which sets the schema's version."""
    return (
        "insert into agent.version (version, min_compatible)\n"
        f"values ('{target}', '{min_compatible}')\n"
        "on conflict ((true))\n"
        "do update set version = excluded.version, min_compatible = excluded.min_compatible;"
    )
