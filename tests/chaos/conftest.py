"""Share one system among all scenarios, which disturb it one after another."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from dev.simulator.client import SimulatorClient

from tests.chaos.report import record
from tests.chaos.stage import Stage
from tests.chaos.witness import watch
from tests.deploy.compose import project
from tests.deploy.conftest import images

__all__ = ["images", "stage"]

FILES = ("-f", "compose.yaml", "-f", "compose.override.yaml", "-f", "tests/chaos/chaos.yaml")
SETTINGS = {"SURELANE_LEASE": "5s", "SURELANE_SWEEP_INTERVAL": "5s", "SURELANE_BACKOFF_BASE": "1s"}


@pytest.fixture(scope="session")
async def stage(images: dict[str, str]) -> AsyncIterator[Stage]:  # noqa: ARG001 - built before
    """Run the demonstration with three workers and short leases. Write the report at the end."""
    subnet = f"10.{random.randrange(100, 200)}.{random.randrange(255)}.0/24"
    with project(*FILES, env={**SETTINGS, "CHAOS_SUBNET": subnet}) as running:
        up = ("up", "--detach", "--wait", "--wait-timeout=180", "--scale=worker=3")
        await asyncio.to_thread(running.compose, *up)
        await watch(running)
        async with SimulatorClient(running.system.slack.removesuffix("/api/")) as simulator:
            made = Stage(running, simulator)
            yield made
        record(made.rows)
