"""What some tests need besides Python. Without it they skip with a listed reason, or fail if ``CI`` is set."""

import os
import re
import shutil
import subprocess
from functools import cache
from typing import NoReturn

import pytest

PROGRAMS = (
    "agents|chromium or chromium-browser or google-chrome|docker|Docker's compose plugin|kubectl"
    "|kubectl or kustomize|langgraph|nginx|nginx's module js|openssl|pgbouncer|playwright|prometheus|promtool"
    "|schemathesis"
)
REASONS = re.compile(
    f"({PROGRAMS}) is not installed(: make .*)?|no Docker engine answers|no Kubernetes cluster answers kubectl"
    "|this server comes without auto_explain|a plain table has no chunks|a hypertable drops whole chunks"
    "|this is not a full git clone: .*"
    "|makes pictures on purpose"
)
"""Why a test may skip. Any other reason fails it, so a test cannot be switched off unnoticed."""
PATIENCE = 10.0
"""Seconds that a Docker engine has to answer."""


def lacking(what: str) -> NoReturn:
    """End the test: as failed in CI, which must have everything, else as skipped."""
    if os.environ.get("CI"):
        pytest.fail(f"{what}, and CI must have it", pytrace=False)
    pytest.skip(what)


def program(*names: str) -> str:
    """Return the path of the first of these programs that is installed."""
    for name in names:
        if path := shutil.which(name):
            return path
    lacking(f"{' or '.join(names)} is not installed")


def unlisted(report: pytest.TestReport) -> str | None:
    """Return why a skipped test fails: its reason is not in :data:`REASONS`. ``None``: it may skip, or did not."""
    if not report.skipped or hasattr(report, "wasxfail") or not isinstance(report.longrepr, tuple):
        return None
    reason = str(report.longrepr[2]).removeprefix("Skipped: ")
    if REASONS.fullmatch(reason):
        return None
    return f"skipped for a reason that is not in tests.needs.REASONS: {reason}"


@cache
def engine_answers() -> bool:
    """Return whether a Docker engine answers.

    Ask the command ``docker``. docker's Python client (7.2) leaves its socket open where no engine listens. Python
    reports that later, in a test that has nothing to do with it.
    """
    command = shutil.which("docker")
    if command is None:
        return False
    try:
        asked = subprocess.run([command, "version"], check=False, capture_output=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0
