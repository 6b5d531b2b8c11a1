"""Share one system among all scenarios, which disturb it one after another."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from surelane_dev.simulator.client import SimulatorClient
from tests.chaos.reached import Reached
from tests.chaos.report import Row, record
from tests.chaos.stage import Stage
from tests.chaos.witness import watch
from tests.deploy.compose import DEMONSTRATION, Project, project
from tests.deploy.conftest import images

__all__ = ["images", "rows", "stage", "unhurried"]

FILES = (*DEMONSTRATION, "tests/chaos/chaos.yaml")
HURRIED = {"SURELANE_LEASE": "5s", "SURELANE_SWEEP_INTERVAL": "5s", "SURELANE_BACKOFF_BASE": "1s"}


@pytest.fixture(scope="session")
def rows() -> Iterator[list[Row]]:
    """What the scenarios came to; the report is written at the end."""
    made: list[Row] = []
    yield made
    record(made)


@pytest.fixture(scope="module")
async def stage(images: dict[str, str], rows: list[Row]) -> AsyncIterator[Stage]:  # noqa: ARG001 - built before
    """The demonstration with three workers and short leases."""
    async with _staged(HURRIED, rows) as made:
        yield made


@pytest.fixture(scope="module")
async def unhurried(images: dict[str, str], rows: list[Row]) -> AsyncIterator[Stage]:  # noqa: ARG001 - built before
    """The same with the leases and graces that workers have by default."""
    async with _staged({}, rows) as made:
        yield made


async def started(running: Project) -> None:
    """Start everything with three workers, and wait until the simulator answers, which waits for the others."""
    await asyncio.to_thread(running.compose, "up", "--detach", "--scale=worker=3", within=300)
    await asyncio.to_thread(running.compose, "up", "--detach", "--wait", "--no-deps", "simulator")


def own_subnet() -> dict[str, str]:
    """Return the setting of tests/chaos/chaos.yaml, with a subnet that probably no other network has."""
    return {"CHAOS_SUBNET": f"10.{random.randrange(100, 200)}.{random.randrange(255)}.0/24"}


@asynccontextmanager
async def _staged(settings: dict[str, str], rows: list[Row]) -> AsyncIterator[Stage]:
    with project(*FILES, env={**settings, **own_subnet()}) as running:
        await started(running)
        reached = Reached(running.name, running.env, running.files)
        await asyncio.to_thread(reached.locate)
        await watch(reached)
        async with SimulatorClient(running.system.slack.removesuffix("/api/")) as simulator:
            yield Stage(reached, simulator, rows)
