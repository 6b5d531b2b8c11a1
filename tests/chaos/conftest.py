"""One system that all scenarios disturb, one after another."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from dev.simulator.client import SimulatorClient

from tests.chaos.faults import Fault
from tests.chaos.report import Row, record
from tests.chaos.traffic import Story, Traffic
from tests.chaos.witness import double_handled, logged, watch
from tests.deploy.compose import Project, project
from tests.deploy.conftest import images

__all__ = ["images", "stage"]

FILES = ("-f", "compose.yaml", "-f", "compose.override.yaml", "-f", "tests/chaos/chaos.yaml")
LEASE = 5
SETTINGS = {
    "SURELANE_LEASE": f"{LEASE}s",
    "SURELANE_SWEEP_INTERVAL": "5s",
    "SURELANE_BACKOFF_BASE": "1s",
}
WELL_WITHIN = 30.0
"""Seconds after which the system is well again by itself, whatever happened to it."""
PATIENCE = 90.0
"""Seconds a scenario waits for what is asserted afterwards, so that a failure says what it came to."""


@dataclass
class Stage:
    """The running system, the scenarios played on it, and what they came to."""

    project: Project
    simulator: SimulatorClient
    rows: list[Row] = field(default_factory=list)

    async def play(self, scenario: str, fault: Fault) -> Row:
        """Lets something happen to the system under traffic, and checks that every promise holds."""
        began, traffic = time.time(), Traffic(self.simulator, self.project.system)
        flowing = asyncio.create_task(traffic.flow())
        try:
            await traffic.well(began, PATIENCE)
            over = await fault(self.project)
            await traffic.well(over, PATIENCE)
        finally:
            flowing.cancel()
            await asyncio.gather(flowing, return_exceptions=True)
        stories = await traffic.settled(PATIENCE)
        row = await self._row(scenario, traffic, stories, began, over)
        troubles = sorted(moment - over for story in stories for moment in story.troubles)
        assert row.well_after < WELL_WITHIN, (row, troubles)
        self.rows.append(row)
        return row

    async def _row(
        self, scenario: str, traffic: Traffic, stories: list[Story], began: float, over: float
    ) -> Row:
        acknowledged = [story for story in stories if story.acknowledged_at]
        lost = [story for story in acknowledged if story.outcome != "completed"]
        said = await traffic.replies(stories)
        silent = [
            s.event_id
            for s in acknowledged
            for word in ("begun", "ended")
            if not said[f"{word} {s.event_id}"]
        ]
        well_after = max([moment for story in stories for moment in story.troubles], default=over) - over
        row = Row(
            scenario,
            sent=len(stories),
            answered_200=len(acknowledged),
            retried=sum(len(story.attempts) > 1 for story in stories),
            well_after=round(max(well_after, 0.0), 1),
            lost=len(lost),
            double_handled=await double_handled(self.project),
            duplicate_replies=sum(said.values()) - len(said),
            handlers_stopped=await logged(self.project, "lease lost", began),
            stale_settles=await logged(self.project, "stale settle", began),
        )
        assert len(acknowledged) == len(stories), f"given up by the sender: {row}"
        assert not lost, (row, lost)
        assert not silent, (row, silent)
        assert row.double_handled == 0, row
        assert row.duplicate_replies == 0, (row, [text for text, times in said.items() if times > 1])
        return row


@pytest.fixture(scope="session")
async def stage(images: dict[str, str]) -> AsyncIterator[Stage]:  # noqa: ARG001 - built before
    """The demonstration with three workers and short leases; the report is written at its end."""
    subnet = f"10.{random.randrange(100, 255)}.{random.randrange(255)}.0/24"
    with project(*FILES, env={**SETTINGS, "CHAOS_SUBNET": subnet}) as running:
        up = ("up", "--detach", "--wait", "--wait-timeout=180", "--scale=worker=3")
        await asyncio.to_thread(running.compose, *up)
        await watch(running)
        async with SimulatorClient(running.system.slack.removesuffix("/api/")) as simulator:
            made = Stage(running, simulator)
            yield made
        record(made.rows)
