"""Run the operators' tools."""

import hashlib
import os
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
REGISTRY = f"surelane-test-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]}/"
"""The prefix of the images that the tests build. Each clone on a machine has its own."""
OURS = ("DATABASE_URL", "POSTGRES_", "SURELANE_", "SLACK_", "OTEL_", "LOG_LEVEL", "COMPOSE_")


def run(
    *command: str | Path,
    env: Mapping[str, str] | None = None,
    within: float = 60,
    check: bool = True,
    where: Path = ROOT,
) -> subprocess.CompletedProcess[str]:
    """Run a command in a directory, with only the given ones of our settings.

    Raises:
        AssertionError: it failed (unless ``check`` is off); the message is its output.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    done = subprocess.run(
        list(map(str, command)),
        cwd=where,
        env={**environment, **(env or {})},
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
    )
    if check and done.returncode != 0:
        raise AssertionError(
            f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done


def version() -> str:
    """Return the version of the packages, from their metadata."""
    return str(tomllib.loads((ROOT / "shared/client/pyproject.toml").read_text())["project"]["version"])
