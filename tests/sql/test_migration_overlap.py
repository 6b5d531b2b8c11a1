"""Expand and contract: the services of the last release work while this release's schema is applied, and after.

The last release is the newest tag before this version. Its own tree brings its scripts, its client and what the client
does; before there is such a tag the working tree plays its part, so that the practice is in use from the start.
"""

import asyncio
import io
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from surelane_migrations.files import discover
from surelane_migrations.runner import Migration
from surelane_migrations.version import MIN_COMPATIBLE, RELEASE, Version
from tests.databases import as_role
from tests.processes import clean_environment
from tests.sql.migrations import connected

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Release:
    """A release's source tree."""

    version: Version
    tree: Path


@pytest.fixture(scope="module")
def last_release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The newest one before this version."""
    versions = sorted(version for version in tagged_versions() if version < RELEASE)
    if not versions:
        return Release(RELEASE, ROOT)
    tree = tmp_path_factory.mktemp("last-release")
    archive = subprocess.run(
        ["git", "archive", f"v{versions[-1]}"], cwd=ROOT, capture_output=True, check=True
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(tree, filter="data")
    return Release(versions[-1], tree)


def tagged_versions() -> list[Version]:
    """The versions that git has tags of; none where this is not a clone."""
    try:
        listed = subprocess.run(
            ["git", "tag", "--list", "v*"], cwd=ROOT, capture_output=True, check=True, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return []
    return [Version.parse(tag.removeprefix("v")) for tag in listed.stdout.split()]


async def start_client(release: Release, database: str) -> asyncio.subprocess.Process:
    """Starts what the release's services do, with the release's own code."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, release.tree / "tests" / "sql" / "overlap_client.py"),
        env={
            **clean_environment(),
            "PYTHONPATH": str(release.tree / "shared" / "src"),
            "INGEST_URL": as_role(database, "surelane_ingest"),
            "WORKER_URL": as_role(database, "surelane_worker"),
        },
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def rounds(client: asyncio.subprocess.Process, number: int) -> None:
    """Waits until the client has done so many more rounds."""
    assert client.stdout
    assert client.stderr
    for _ in range(number):
        line = await asyncio.wait_for(client.stdout.readline(), 90)
        assert line, (await client.stderr.read()).decode()


async def test_the_last_releases_client_works_while_and_after_the_schema_changes(
    empty_database: str, last_release: Release
) -> None:
    before = Migration(
        discover(last_release.tree / "migrations"), last_release.version, Version.parse("0.1.0")
    )
    await before.apply(empty_database)
    client = await start_client(last_release, empty_database)
    try:
        await rounds(client, 3)
        for _ in range(3):
            outcome = await Migration(discover(), RELEASE, MIN_COMPATIBLE, again=True).apply(empty_database)
            assert outcome.migrated
            await rounds(client, 3)
        _, errors = await asyncio.wait_for(client.communicate(b""), 90)
        assert client.returncode == 0, errors.decode()
    finally:
        if client.returncode is None:
            client.kill()


async def test_this_release_serves_the_last_ones_services(last_release: Release) -> None:
    assert last_release.version >= MIN_COMPATIBLE


@pytest.mark.parametrize(
    "call",
    [
        "agent.insert_event('{}'::jsonb)",
        "agent.insert_event('{}')",
        "agent.claim_event()",
        "agent.claim_event(3)",
        "agent.claim_event(3, '10m')",
        "agent.claim_event(_invisible_for => '10m')",
        "agent.delete_event(1)",
        "agent.delete_expired_events()",
        "agent.delete_expired_events(3, '1h')",
        "agent.delete_expired_events(_max_vt_age => interval '1h')",
        "agent.to_timestamptz(1760000000.000100)",
        "agent.to_timestamptz('1760000000.000100'::text)",
        "agent.from_timestamptz(now())",
    ],
)
async def test_a_documented_call_means_exactly_one_function(database: str, call: str) -> None:
    """A second overload with defaults would make the shorter calls ambiguous for everybody's code."""
    async with connected(database) as connection:
        await connection.execute(f"explain select * from {call}")
