"""The adapter of the public harness speaks its protocol: ``benchmarks/harness``."""

import asyncio
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from surelane import __version__
from surelane.calls import Connection
from surelane_migrations.version import RELEASE
from tests.system.restartable import restartable

ROOT = Path(__file__).parents[2]
HARNESS = ROOT / "benchmarks" / "harness"
LATENCIES = {
    f"{name}_p{share}_ms"
    for name in ("claim", "subscriber", "end_to_end", "producer", "producer_call")
    for share in (50, 95, 99)
}
REQUIRED = LATENCIES | {"enqueue_rate", "completion_rate", "queue_depth", "producer_target_rate"}
ENDED = "select count(*) from agent.event_hist where kind = 'bench' and outcome = 'completed'"


class Adapter:
    """A running adapter, as the harness sees it."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def line(self) -> dict[str, Any]:
        """Return the next line of its standard output: each is JSON."""
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(await self._process.stdout.readline())
        return found

    def ask(self, *numbers: int) -> None:
        """Ask for jobs, as the harness paces them."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"".join(b"ENQUEUE %d\n" % number for number in numbers))

    async def says(self, text: str) -> None:
        """Wait until it logs a line."""
        assert self._process.stderr is not None
        async with asyncio.timeout(60):
            while text not in (line := (await self._process.stderr.readline()).decode()):
                assert line, f"it ended without: {text}"

    async def shows(self, fits: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        """Wait until its samples fit: the latest of each metric."""
        seen: dict[str, float] = {}
        async with asyncio.timeout(60):
            while not fits(seen):
                sample = await self.line()
                assert (sample["kind"], sample["subject_kind"]) == ("adapter", "adapter")
                seen[sample["metric"]] = sample["value"]
        return seen


@asynccontextmanager
async def adapter(database: str, **env: str) -> AsyncIterator[Adapter]:
    """Run it for the length of the block, and end it as the harness does."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.harness.adapter"),
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "DATABASE_URL": database, "SAMPLE_EVERY_S": "1", **env},
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        yield Adapter(process)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_it_handles_what_the_harness_asks_for_and_reports_it(
    database: str, connection: Connection
) -> None:
    async with adapter(database, PRODUCER_PACING="harness", WORKER_COUNT="8") as running:
        described = await running.line()
        manifest = json.loads((HARNESS / "adapter.json").read_text())
        assert described["kind"] == "descriptor"
        assert described.items() >= {name: manifest[name] for name in ("system", "db_name")}.items()
        assert set(described["event_tables"]) >= set(manifest["event_tables"])
        assert (described["version"], described["schema_version"]) == (__version__, str(RELEASE))

        running.ask(20, 30)
        # Once all that were claimed have ended, each took JOB_WORK_MS longer than its claim.
        seen = await running.shows(
            lambda seen: (
                seen.keys() >= REQUIRED
                and all(map(seen.get, LATENCIES))
                and seen["end_to_end_p50_ms"] >= seen["claim_p50_ms"] + 1
            )
        )
        assert seen["producer_call_p50_ms"] > seen["producer_p50_ms"]
        async with asyncio.timeout(60):
            while await connection.fetchval(ENDED) < 50:
                await running.line()


@pytest.mark.parametrize("paced_by", ["lines", "file", "depth"])
async def test_it_goes_on_after_a_restart_of_the_database(paced_by: str, tmp_path: Path) -> None:
    """Of jobs that were due meanwhile some are lost; those after it are enqueued and handled."""
    rate = tmp_path / "producer_rate.txt"
    rate.write_text("40")
    env = {
        "lines": {"PRODUCER_PACING": "harness"},
        "file": {"PRODUCER_PACING": "harness", "PRODUCER_RATE_CONTROL_FILE": str(rate)},
        "depth": {"PRODUCER_MODE": "depth-target", "TARGET_DEPTH": "20"},
    }[paced_by]

    async def handled(running: Adapter) -> None:
        running.ask(5)
        await running.shows(lambda seen: seen.get("completion_rate", 0) > 0)

    async with restartable() as server, adapter(server.uri(), **env) as running:
        assert (await running.line())["kind"] == "descriptor"
        await handled(running)
        await server.stop()
        running.ask(5, 5)
        await running.says("jobs are lost")
        await running.shows(lambda seen: seen.get("completion_rate", 1) == 0)  # it reports meanwhile, too
        await server.start()
        await handled(running)


def test_it_is_installed_with_its_version(tmp_path: Path) -> None:
    """The harness notes in its manifest what it measured, and finds a system by its registration."""
    (root := tmp_path / "surelane" / "benchmarks").mkdir(parents=True)
    shutil.copytree(HARNESS, root / "harness")
    shutil.copytree(ROOT / "requirements", root.parent / "requirements")
    (root.parent / "dist").mkdir()
    for name in ("surelane", "surelane_service", "surelane_worker", "surelane_migrations"):
        (root.parent / "dist" / f"{name}-{__version__}-py3-none-any.whl").touch()
    (clone := tmp_path / "clone" / "bench_harness").mkdir(parents=True)
    (clone / "adapters.py").write_text("ADAPTERS = {}\n")
    (clone / "versions.py").write_text("from pathlib import Path\n_CAPTURE = {}\n")
    (clone.parent / "init-databases.sql").touch()
    for _ in range(2):  # the second time it brings new wheels, and registers nothing twice
        subprocess.run(["sh", root / "harness" / "install", clone.parent], check=True)
    known = runpy.run_path(str(clone / "versions.py"))
    assert known["_CAPTURE"]["surelane"]()["pinned_version"] == __version__
    assert (clone / "versions.py").read_text().count("_CAPTURE[") == 1
    assert (clone / "adapters.py").read_text().count("ADAPTERS[") == 1
    assert len(re.findall("CREATE DATABASE", (clone.parent / "init-databases.sql").read_text())) == 1
    assert json.loads((clone.parent / "surelane-bench" / "adapter.json").read_text())["system"] == "surelane"
