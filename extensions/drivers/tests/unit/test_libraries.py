"""A library is imported for its own connections alone."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("missing", "code"),
    [
        # SQLAlchemy 2.1 does not bring greenlet.
        ("greenlet", "SyncQueue(Session(create_engine('postgresql+psycopg://nowhere/')))"),
        ("psycopg", "Queue(create_async_engine('postgresql+asyncpg://nowhere/').connect())"),
    ],
)
def test_a_queue_over_sqlalchemy_needs_only_what_its_connection_needs(missing: str, code: str) -> None:
    imports = "from surelane import Queue; from surelane_drivers import SyncQueue"
    libraries = "from sqlalchemy import create_engine; from sqlalchemy.orm import Session"
    if "async" in code:
        libraries = "from sqlalchemy.ext.asyncio import create_async_engine"
    program = f"import sys; sys.modules['{missing}'] = None; {imports}; {libraries}; {code}"
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
