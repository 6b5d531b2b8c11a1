"""The real scripts are recorded under this release's version, and make what ``schema.txt`` says on every server.

After a change of unreleased scripts, this records them anew. Read the difference before you commit it:

    SURELANE_RECORD=1 .venv/bin/python -m pytest tests/sql/test_migration_release.py
"""

import os
import subprocess
from pathlib import Path

import pytest

from surelane_dev.accounts import OWNER, prepare, uri_of
from surelane_migrations.common.schema import RECORD as SCHEMA
from surelane_migrations.common.schema import describe_schema
from surelane_migrations.files import PACKAGED, discover
from surelane_migrations.status import expected_schema
from surelane_migrations.version import RELEASE
from tests.old_postgres import OLDEST, oldest_postgres
from tests.sql.migrations import command, connected, server_directory
from tests.sql.releases import COMMITS, digest_of, parse_releases

RELEASES = PACKAGED / "releases.txt"
SCHEMA_HEADER = "# All that the scripts make, for `verify`; written by tests/sql/test_migration_release.py.\n"
RECORD = "SURELANE_RECORD=1 .venv/bin/python -m pytest tests/sql/test_migration_release.py"


@pytest.fixture(scope="module", autouse=True)
def _record_scripts() -> None:
    """If asked to, write this version's digest, unless the version is released."""
    if not os.environ.get("SURELANE_RECORD"):
        return
    if is_released():
        pytest.exit(
            f"{RELEASE} is released: raise the version in every pyproject.toml, and install the packages again",
            returncode=2,
        )
    digests = {**parse_releases(RELEASES.read_text()), str(RELEASE): digest_of(discover())}
    comments = [line for line in RELEASES.read_text().splitlines() if line.startswith("#")]
    RELEASES.write_text("\n".join([*comments, *(" ".join(line) for line in digests.items())]) + "\n")


@pytest.fixture
async def objects(database: str) -> tuple[str, ...]:
    """Return the objects that the scripts made. Write them to ``schema.txt`` if asked to."""
    async with connected(database) as connection:
        lines = await describe_schema(connection)
    if os.environ.get("SURELANE_RECORD"):
        SCHEMA.write_text(SCHEMA_HEADER + "\n".join(lines) + "\n")
    return lines


def is_released() -> bool:
    """Return whether this version is released: it has a commit or a tag. Without git there are no tags."""
    if str(RELEASE) in COMMITS:
        return True
    try:
        listed = subprocess.run(
            ["git", "tag", "--list", f"v{RELEASE}"],
            cwd=Path(__file__).parent,
            capture_output=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return False
    return bool(listed.stdout.strip())


def test_changed_scripts_have_a_new_version() -> None:
    recorded = parse_releases(RELEASES.read_text()).get(str(RELEASE))
    assert recorded == digest_of(discover()), (
        f"the scripts are not those recorded for {RELEASE}. If {RELEASE} is released, raise the version in every "
        f"pyproject.toml first. Then record them: {RECORD}"
    )


async def test_the_scripts_make_what_the_schema_file_says_also_when_run_again(
    database: str, objects: tuple[str, ...]
) -> None:
    assert objects == expected_schema(), f"if that is intended, record it: {RECORD}"
    finished = await command(database, "verify")
    assert (finished.code, finished.output) == (0, "")
    assert (await command(database, "apply", "--again")).code == 0
    async with connected(database) as connection:
        assert await describe_schema(connection) == objects


@pytest.mark.slow
async def test_the_oldest_supported_server_gets_the_same_schema() -> None:
    with server_directory() as directory:
        async with oldest_postgres(directory) as admin:
            await prepare(admin, "surelane")
            dsn = uri_of(admin, role=OWNER, database="surelane")
            finished = await command(dsn, "apply")
            assert finished.code == 0, finished.progress
            async with connected(dsn) as connection:
                assert connection.get_server_version().major == OLDEST
                assert await describe_schema(connection) == expected_schema()
            assert (await command(dsn, "verify")).code == 0


BODIES = """
select oid::regprocedure::text as name, pg_get_functiondef(oid) as made from pg_proc
where pronamespace = 'agent'::regnamespace and prosqlbody is not null
"""


async def test_a_restored_dump_has_the_same_functions(database: str) -> None:
    """PostgreSQL dumps a SQL body from its parsed form, and may print that in other words once it is parsed again."""
    async with connected(database) as connection:
        await connection.execute("set search_path = ''")
        before = {row["name"]: row["made"] for row in await connection.fetch(BODIES)}
        for made in before.values():
            await connection.execute(made)
        after = {row["name"]: row["made"] for row in await connection.fetch(BODIES)}
    assert len(before) > 50
    assert [name for name, made in before.items() if after[name] != made] == []
