"""What synchronous programs need installed for a ``SyncQueue``."""

import subprocess
import sys

import pytest

WITHOUT_GREENLET = """
import sys
sys.modules["greenlet"] = None
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from surelane import SyncQueue
SyncQueue(Session(create_engine("postgresql+psycopg://nowhere/")))
"""


@pytest.mark.slow
def test_a_queue_over_a_synchronous_session_needs_no_greenlet() -> None:
    """SQLAlchemy 2.1 does not bring it."""
    command = [sys.executable, "-c", WITHOUT_GREENLET]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
