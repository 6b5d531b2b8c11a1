"""What holds while servers, schemas, keys and installations change."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from surelane.errors import EncryptionFailed
from surelane.queue import Queue
from surelane_encryption import Encryption
from surelane_encryption.keys import new_key
from surelane_migrations.files import PACKAGED, discover
from surelane_migrations.runner import Migration
from surelane_operator.changes import Changes
from surelane_shards.moving import BLOCK, move
from tests import forked
from tests.databases import Databases, Server
from tests.promises.conftest import becomes, completed, noted, working
from tests.sql.migrations import BLOCKED, connected, state
from tests.system.half_open import half_open
from tests.system.restartable import Restartable
from tests.system.worker import ended, enqueue

TEAM = "T0MOVES"
SUSPENDED = "select reason = 'suspended' from agent.why_waiting($1)"


@pytest.mark.promise("encryption")
async def test_a_sealed_result_opens_for_its_own_event_alone(database: str, connection: Connection) -> None:
    key = new_key()
    async with working(database, SURELANE_ENCRYPTION_KEYS=key, SURELANE_ENCRYPT_EVENTS="true"):
        one, other = [await enqueue(connection, "secret", {"text": text}) for text in ("first", "second")]
        rows = [await ended(connection, identity, within=90) for identity in (one, other)]
    assert not any("first" in row["result"] or "second" in row["result"] for row in rows)
    async with asyncpg.create_pool(database, min_size=0, max_size=2) as pool:
        changes = Changes(pool, Encryption(key, pool))

        async def shown(identity: int) -> Any:
            return (await changes.get(identity, texts=True) or {})["result"]

        assert await shown(one) == {"secret": "first"}
        swap = "update agent.event_hist set result = $2 where id = $1"
        await connection.execute(swap, one, rows[1]["result"])
        with pytest.raises(EncryptionFailed, match="it is damaged, or was changed in the database"):
            await shown(one)
        assert await shown(other) == {"secret": "second"}


@pytest.mark.promise("failover")
async def test_work_goes_on_at_a_standby_that_is_promoted(postgres: Restartable, tmp_path: Path) -> None:
    payload = {"log": str(tmp_path / "log")}
    standby = await postgres.copy(tmp_path / "standby")
    try:
        await standby.start()
        async with half_open(postgres.uri("surelane_worker")) as address, working(address.uri):
            async with postgres.connected() as connection:
                held = await enqueue(connection, "hold", payload)
                await noted(tmp_path / "log", "begin 1")
                position = await connection.fetchval("select pg_current_wal_lsn()::text")
            async with standby.connected() as copy:
                await becomes(copy, "select pg_last_wal_replay_lsn() >= $1::text::pg_lsn", position)
            address.lead_to(standby.uri("surelane_worker"))
            (tmp_path / "log.go").touch()
            await standby.execute("select pg_promote()")
            async with standby.connected() as connection:
                assert await completed(connection, held) == 1
                await completed(connection, await enqueue(connection, "nothing"))
    finally:
        await standby.aclose()


@pytest.mark.promise("versions")
async def test_a_migration_under_traffic_stops_no_work(database: str, connection: Connection) -> None:
    stored: list[int] = []
    migrating = asyncio.Event()

    async def load() -> None:
        async with connected(database) as own:
            while not migrating.is_set():
                stored.append(await enqueue(own, "nothing", group_key=f"T:C:{len(stored) % 5}"))
                await asyncio.sleep(0.01)

    async with working(database), asyncio.TaskGroup() as group:
        group.create_task(load())
        await becomes(connection, "select count(*) > 20 from agent.event_hist")
        assert (await Migration(discover(PACKAGED), again=True).apply(database)).migrated
        migrating.set()
    async with working(database):
        await becomes(connection, "select not exists (select from agent.event)")
    rows = await connection.fetch("select id, outcome, attempts from agent.event_hist order by id")
    assert [(row["id"], row["outcome"], row["attempts"]) for row in rows] == [
        (identity, "completed", 1) for identity in stored
    ]


@pytest.mark.promise("migrations")
async def test_a_migration_that_is_killed_leaves_the_schema_as_it_was(
    empty_database: str, tmp_path: Path
) -> None:
    for folder in ("incremental", "idempotent"):
        (tmp_path / folder).mkdir()
        wait = "select pg_advisory_xact_lock_shared(1);" if folder == "idempotent" else ""
        (tmp_path / folder / "000-a.sql").write_text(f"create table agent.{folder} as select 1 as n; {wait}")
    before = await state(empty_database)
    async with connected(empty_database) as gate, connected(empty_database) as watching:
        await gate.execute("select pg_advisory_lock(1)")
        command = ("apply", "--scripts", str(tmp_path))
        runner = await forked.start("surelane_migrations", *command, env={"DATABASE_URL": empty_database})
        await becomes(watching, BLOCKED)
        runner.kill()
        await runner.communicate()
        assert runner.returncode == -signal.SIGKILL
    assert await state(empty_database) == before


@pytest.mark.promise("moves")
async def test_a_workspace_that_moves_takes_its_suspended_run_with_it_and_repeats_no_step(
    server: Server, databases: Databases, tmp_path: Path
) -> None:
    payload = {"team_id": TEAM, "log": str(tmp_path / "log")}
    async with databases.lent() as one, databases.lent() as other:
        here, there = server.uri(one), server.uri(other)
        async with connected(here) as source, connected(there) as target:
            await target.execute(f"select setval('agent.event_id_seq', {BLOCK})")
            async with working(here):
                moved = await enqueue(source, "approved", payload)
                stays = await enqueue(source, "approved", payload | {"team_id": "T0STAYS"})
                for identity in (moved, stays):
                    await becomes(source, SUSPENDED, identity)
                await move(source, target, TEAM, lambda _: None)
            assert await source.fetchval("select array_agg(id) from agent.event") == [stays]
            async with working(there):
                await Queue(target).signal(str(moved), "answer", "yes")
                assert await completed(target, moved) == ["first", "yes", "second"]
    assert (tmp_path / "log").read_text().split() == ["first", "first", "second"]
