"""If the runner, its session or the server is killed at any step, the database stays as it was."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from surelane.calls import Connection
from surelane_migrations.errors import UnreachableError
from tests.sql.migrations import (
    BACKENDS,
    BLOCKED,
    becomes,
    connected,
    finish,
    migration,
    refused,
    start,
    state,
    write_scripts,
)

pytestmark = pytest.mark.slow

GATE = "select pg_advisory_xact_lock_shared(1);"
AT_COMMIT = f"""
create function agent.gate() returns trigger language plpgsql
as $$ begin {GATE.replace("select", "perform")} return null; end $$;
create table agent.gated (n int);
create constraint trigger gate after insert on agent.gated deferrable initially deferred
for each row execute function agent.gate();
insert into agent.gated values (1);
"""
STEPS = ("bootstrap", "000-a.sql", "001-b.sql", "000-c.sql", "001-d.sql", "commit")


def scripts_blocking_at(directory: Path, step: str) -> Path:
    """Write scripts that each have an effect, and wait at a closed gate at ``step``."""

    def text(name: str) -> str:
        table = f"create table agent.t_{name[4]} as select 1 as n;"
        return f"{table} {GATE if name == step else AT_COMMIT if step == 'commit' and name == '001-d.sql' else ''}"

    return write_scripts(
        directory,
        incremental={name: text(name) for name in STEPS[1:3]},
        idempotent={name: text(name) for name in STEPS[3:5]},
    )


@asynccontextmanager
async def closed_gate(dsn: str, step: str) -> AsyncIterator[Connection]:
    """Lock an object that the runner needs at ``step``: the gate, or the schema's name in an open transaction."""
    async with connected(dsn) as gate:
        await gate.execute("select pg_advisory_lock(1)")
        if step == "bootstrap":
            await gate.execute("begin; create schema agent")
        async with connected(dsn) as observer:
            yield observer
        if step == "bootstrap":
            await gate.execute("rollback")


KILLS = [(step, signal.SIGKILL, -signal.SIGKILL) for step in STEPS]
INTERRUPTIONS = [("001-b.sql", signal.SIGTERM, 143), ("001-b.sql", signal.SIGINT, 130)]


@pytest.mark.parametrize(("step", "number", "code"), [*KILLS, *INTERRUPTIONS])
async def test_a_killed_or_interrupted_runner_leaves_nothing_behind(
    empty_database: str, tmp_path: Path, step: str, number: signal.Signals, code: int
) -> None:
    scripts_blocking_at(tmp_path, step)
    before = await state(empty_database)
    async with closed_gate(empty_database, step) as observer:
        runner = await start(empty_database, "apply", "--scripts", tmp_path)
        await becomes(observer, BLOCKED)
        runner.send_signal(number)
        finished = await finish(runner)
        # The gate stays closed: the server notices by itself that its client is gone.
        await becomes(observer, f"select ({BACKENDS}) = 0")
    assert finished.code == code
    said = f"interrupted by {number.name}; nothing is left halfway" in finished.progress
    assert (said, "Traceback" in finished.progress) == (code > 0, False)
    assert await state(empty_database) == before


@pytest.mark.parametrize("step", STEPS)
async def test_a_terminated_session_leaves_nothing(empty_database: str, tmp_path: Path, step: str) -> None:
    scripts_blocking_at(tmp_path, step)
    async with (
        refused(empty_database, UnreachableError, "Nothing is left halfway"),
        closed_gate(empty_database, step) as observer,
    ):
        running = asyncio.create_task(migration(tmp_path, timeout="1m").apply(empty_database))
        await becomes(observer, BLOCKED)
        await observer.execute(BACKENDS.replace("count(*)", "pg_terminate_backend(pid)"))
        await asyncio.wait_for(running, 60)
