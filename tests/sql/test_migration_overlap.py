"""The previous release's data and services survive this release's migration.

The previous release comes from git. Its scripts make the schema, its functions store the data, and a client with its
packages works while this release's scripts are applied, and afterwards.
"""

import asyncio
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from surelane.calls import Connection
from surelane_migrations.files import PACKAGED, discover
from surelane_migrations.runner import Migration
from surelane_migrations.version import MIN_COMPATIBLE, RELEASE, Version
from tests.databases import as_role
from tests.mutants.tree import environment
from tests.needs import lacking
from tests.processes import clean_environment
from tests.sql.migrations import connected
from tests.sql.queue_steps import claim, complete, ending, enqueue, envelope, event_of, fail, pair
from tests.sql.releases import BASE, COMMITS, digest_of, parse_releases

ROOT = Path(__file__).parents[2]

KEPT = "kept"
"""The kind of the stored data. It is paused during the migration, because the old client claims every other kind."""

OLD = envelope("Ev1", type="old")
"""An event that ends years after its ``event_ts``; of a kind of its own."""


@dataclass(frozen=True)
class Release:
    """A release's source tree."""

    version: Version
    tree: Path


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Unpack the newest release before this version; before the first one, the schema that this version began with."""
    version, commit = max(((Version(each), COMMITS[each]) for each in COMMITS), default=(RELEASE, BASE))
    try:
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        lacking(f"this is not a full git clone: it lacks commit {commit[:7]} of release {version}")
    tree = tmp_path_factory.mktemp("previous-release")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(tree, filter="data")
    return Release(version, tree)


async def install(release: Release, database: str) -> None:
    """Apply a release's own scripts to an empty database."""
    scripts = discover(release.tree / "migrations")
    await Migration(scripts, release.version, release.version).apply(database)


async def upgrade(database: str) -> None:
    """Apply this release's scripts, even if they were applied before."""
    assert (await Migration(discover(), RELEASE, MIN_COMPATIBLE, again=True).apply(database)).migrated


@asynccontextmanager
async def started_client(release: Release, database: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a client with the release's own packages. It uses the queue as their services do, without an error."""
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, release.tree / "tests" / "sql" / "overlap_client.py"),
        env={
            **clean_environment(),
            "PYTHONPATH": environment(release.tree)["PYTHONPATH"],
            "INGEST_URL": as_role(database, "surelane_ingest"),
            "WORKER_URL": as_role(database, "surelane_worker"),
        },
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield client
        _, errors = await asyncio.wait_for(client.communicate(b""), 90)
        assert client.returncode == 0, errors.decode()
    finally:
        if client.returncode is None:
            client.kill()


async def rounds(client: asyncio.subprocess.Process, number: int) -> None:
    """Wait until the client has finished that many more rounds."""
    assert client.stdout
    assert client.stderr
    for _ in range(number):
        line = await asyncio.wait_for(client.stdout.readline(), 90)
        assert line, (await client.stderr.read()).decode()


async def store(queue: Connection) -> dict[str, int]:
    """Store an event in every state, through functions that the previous release documents. Return ids by names."""
    ids: dict[str, int] = {}

    async def stored(name: str, group: str | None = None, **named: Any) -> None:
        ids[name] = await enqueue(queue, KEPT, item_key=name, group_key=group, **named)

    for name in ("completed", "failed", "retrying", "running"):
        await stored(name)
        assert [pair(row) for row in await claim(queue, KEPT)] == [(ids[name], 1)]
    await complete(queue, (ids["completed"], 1), results=['{"answer": 42}'])
    await fail(queue, (ids["failed"], 1), final=True, reason="no_luck")
    await fail(queue, (ids["retrying"], 1), retry_in=timedelta(hours=1))
    later = datetime.now(UTC) + timedelta(hours=1)
    await stored("cancelled", run_at=later)
    await queue.execute("select agent.cancel_event('cancelled')")
    for name in ("member", "next member"):
        await stored(name, "group")
    assert len(await claim(queue, KEPT)) == 2
    children = json.dumps([{"kind": KEPT, "payload": {"n": n}} for n in range(2)])
    ids["continuation"] = await queue.fetchval(
        "select agent.fan_out($1, $2)", children, json.dumps({"kind": KEPT})
    )
    ids["first child"], ids["child"] = [row["id"] for row in await claim(queue, KEPT)]
    await complete(queue, (ids["first child"], 1), results=['"first"'])
    await stored("pending")
    await stored("scheduled", run_at=later)
    await stored("held", "group")
    await queue.execute("select agent.delete_event(agent.insert_event($1))", OLD)
    await queue.execute("select agent.pause_kind($1)", KEPT)
    return ids


async def rows(queue: Connection) -> dict[int, dict[str, Any]]:
    """Read every row of the stored data, live and ended, by id."""
    found = await queue.fetch(
        "select id, to_jsonb(e) as columns from agent.event as e where kind = $1"
        " union all select id, to_jsonb(h) from agent.event_hist as h where kind = $1",
        KEPT,
    )
    return {row["id"]: json.loads(row["columns"]) for row in found}


async def finish(queue: Connection, ids: dict[str, int]) -> None:
    """End every stored event, with the claims that the previous release made."""

    async def claims(name: str) -> None:
        assert [row["id"] for row in await claim(queue, KEPT)] == [ids[name]]

    await queue.execute("select agent.resume_kind($1)", KEPT)
    await claims("pending")
    held = [(ids[name], 1) for name in ("running", "member", "next member")]
    assert await complete(queue, *held) == ["done"] * 3
    await claims("held")
    assert await complete(queue, (ids["child"], 1), results=['"second"']) == ["done"]
    await claims("continuation")
    children = await queue.fetch("select result from agent.children($1)", ids["continuation"])
    assert [child["result"] for child in children] == ['"first"', '"second"']
    await queue.execute("select agent.reschedule_event('scheduled', now())")
    await claims("scheduled")
    waiting = await event_of(queue, ids["retrying"])
    assert (waiting["attempts"], len(json.loads(waiting["errors"]))) == (1, 1)
    outcomes = {name: name for name in ("completed", "failed", "cancelled")} | {"first child": "completed"}
    for name, outcome in outcomes.items():
        assert (await ending(queue, ids[name]))[0] == outcome
    await queue.execute("select agent.rerun_events(array[$1::int8])", ids["failed"])
    (again,) = await claim(queue, KEPT)
    assert again["id"] == ids["failed"]
    assert await complete(queue, pair(again)) == ["done"]
    assert (await ending(queue, ids["failed"]))[0] == "completed"
    old = await queue.fetchval("select id from agent.list_jobs(_kinds => '{slack.old}')")
    assert await queue.fetchval("select agent.insert_event($1)", OLD) == old


@pytest.mark.slow
async def test_the_previous_releases_data_and_client_survive(empty_database: str, previous: Release) -> None:
    await install(previous, empty_database)
    async with connected(empty_database) as queue:
        stored = await store(queue)
        before = await rows(queue)
        assert set(before) == {*stored.values()}
        async with started_client(previous, empty_database) as client:
            await rounds(client, 3)
            for _ in range(3):
                await upgrade(empty_database)
                await rounds(client, 3)
        after = await rows(queue)
        assert {identity: {**after[identity], **columns} for identity, columns in before.items()} == after
        await finish(queue, stored)


@pytest.mark.slow
async def test_this_releases_client_works_on_its_own_schema(database: str) -> None:
    async with started_client(Release(RELEASE, ROOT), database) as client:
        await rounds(client, 1)


async def test_the_previous_releases_tree_is_the_one_whose_digest_is_recorded(previous: Release) -> None:
    recorded = parse_releases((PACKAGED / "releases.txt").read_text())
    assert recorded.keys() == {*COMMITS, str(RELEASE)}
    if COMMITS:
        assert recorded[str(previous.version)] == digest_of(discover(previous.tree / "migrations"))


async def test_this_release_serves_the_previous_ones_services(previous: Release) -> None:
    assert previous.version >= MIN_COMPATIBLE


async def test_a_documented_call_means_exactly_one_function(database: str) -> None:
    """A second overload with defaults would make the shorter calls ambiguous."""
    async with connected(database) as connection:
        for call in (
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
            "agent.enqueue('job')",
            "agent.enqueue('job', '{}')",
            "agent.enqueue('job', '{}', null)",
            "agent.enqueue('job', '{}', 'dedupe-key')",
            "agent.enqueue('job', '{}', 0)",
            "agent.enqueue('job', _payload => '{}', _priority => 0, _item_key => 'k')",
        ):
            await connection.execute(f"explain select * from {call}")
