"""A running system takes a new version under traffic, the migration first, and takes the services back."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.deploy.commands import version
from tests.deploy.compose import Project, project
from tests.scenario import accepted_during, all_answered_once, answered_once

pytestmark = [pytest.mark.container, pytest.mark.timeout(600)]


@pytest.fixture
def system(images: dict[str, str]) -> Iterator[Project]:  # noqa: ARG001 - built before
    with project() as running:
        running.compose("up", "--detach", "--wait", "--wait-timeout=180")
        yield running


async def test_nothing_is_lost_as_a_version_goes_up_and_back(system: Project, next_version: str) -> None:
    async def migrate() -> None:
        await asyncio.to_thread(system.at(next_version).compose, "run", "--rm", "migrate")
        await asyncio.to_thread(system.compose, "restart", "worker")  # old code starts on the newer schema

    async def upgrade() -> None:
        await asyncio.to_thread(system.at(next_version).compose, "up", "-d", "--wait", "ingest", "worker")

    async def roll_back() -> None:
        back = ("up", "--detach", "--wait", "--no-deps", "ingest", "worker")
        await asyncio.to_thread(system.at(version()).compose, *back)

    for step, running in ((migrate, version()), (upgrade, next_version), (roll_back, version())):
        accepted = await accepted_during(lambda: system.system, step())
        assert system.query("select version from agent.version") == next_version
        assert {tag.rpartition(":")[2] for tag in system.images("ingest", "worker")} == {running}
        await all_answered_once(system.system, accepted)
        await answered_once(system.system)
