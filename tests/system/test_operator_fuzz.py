"""The operator's API keeps to its own OpenAPI document, whatever it is sent."""

import asyncio
import importlib.util
import os
import sys
from pathlib import Path

import pytest

from surelane.jobs import Continuation, Job
from surelane.pool import Connection
from surelane.queue import Queue
from tests.databases import as_role
from tests.processes import clean_environment, service

TOKEN = "an-operators-token-0123456789"
CONFIG = """
[checks]
# Schedules and cursors have rules no schema can say; /v1/jobs/{id} also matches /v1/jobs/requeue.
positive_data_acceptance.enabled = false
unsupported_method.enabled = false
allow_header_conformance.enabled = false

[[operations]]
# In a query a number where text is expected is text.
include-operation-id = "listJobs"
checks.negative_data_rejection.enabled = false
"""


@pytest.mark.fuzz
@pytest.mark.timeout(300)
async def test_the_api_keeps_to_its_document(database: str, connection: Connection, tmp_path: Path) -> None:
    if importlib.util.find_spec("schemathesis") is None:
        missing = "schemathesis is not installed: make fuzz installs it"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    queue = Queue(connection)
    for number in range(5):
        await queue.enqueue("agent-turn", {"n": number}, item_key=f"k{number}")
    await queue.fan_out([Job("a"), Job("b")], Continuation("c"))
    env = {
        "DATABASE_URL": as_role(database, "surelane_ingest"),
        "SURELANE_OPERATOR_DATABASE_URL": as_role(database, "surelane_worker"),
        "SLACK_SIGNING_SECRET": "test-signing-secret",
        "SURELANE_API_TOKEN": TOKEN,
    }
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    async with service("surelane_ingest", env) as ingest:
        fuzzing = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{ingest.private_url}/v1/openapi.json"),
            *("--header", f"Authorization: Bearer {TOKEN}", "--max-examples", "50", "--no-color"),
            cwd=tmp_path,
            env=clean_environment(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        report, _ = await fuzzing.communicate()
    assert fuzzing.returncode == 0, report.decode()
