"""The adapter of the public harness speaks its protocol: ``benchmarks/harness``."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from surelane.calls import Connection

ROOT = Path(__file__).parents[2]
HARNESS = ROOT / "benchmarks" / "harness"
REQUIRED = {
    "claim_p50_ms", "claim_p95_ms", "claim_p99_ms", "enqueue_rate", "completion_rate", "queue_depth",
}  # fmt: skip
ENDED = "select count(*) from agent.event_hist where kind = 'bench' and outcome = 'completed'"


async def test_it_handles_what_the_harness_asks_for_and_reports_it(
    database: str, connection: Connection
) -> None:
    paced = {"PRODUCER_PACING": "harness", "SAMPLE_EVERY_S": "1", "JOB_WORK_MS": "1", "WORKER_COUNT": "8"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.harness.adapter"),
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "DATABASE_URL": database, **paced},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        described = json.loads(await process.stdout.readline())
        manifest = json.loads((HARNESS / "adapter.json").read_text())
        assert described["kind"] == "descriptor"
        assert described.items() >= {name: manifest[name] for name in ("system", "db_name")}.items()
        assert set(described["event_tables"]) >= set(manifest["event_tables"])

        seen: dict[str, float] = {}
        process.stdin.write(b"ENQUEUE 20\nENQUEUE 30\n")
        async with asyncio.timeout(60):
            while seen.keys() < REQUIRED or not seen["completion_rate"] or not seen["claim_p99_ms"]:
                sample = json.loads(await process.stdout.readline())
                assert (sample["kind"], sample["subject_kind"]) == ("adapter", "adapter")
                seen[sample["metric"]] = max(seen.get(sample["metric"], 0.0), sample["value"])
            while await connection.fetchval(ENDED) < 50:
                await process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
