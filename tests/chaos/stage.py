"""Disturb a running system, and check its promises afterwards."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from surelane_dev.simulator.client import SimulatorClient
from tests.chaos.faults import Fault
from tests.chaos.reached import Reached
from tests.chaos.report import Row
from tests.chaos.traffic import FLOWING, Story, Traffic
from tests.chaos.witness import double_handled, logged, over_limit, rescued_within, stale_settles

WELL_WITHIN = 60.0
"""Seconds within which the system recovers from every fault by itself, on a machine with much else to do."""
PATIENCE = 120.0
"""Seconds to wait before the assertions. Longer than the bound, so that a failure shows the real time."""


@dataclass
class Stage:
    """The running system, its scenarios and their results."""

    project: Reached
    simulator: SimulatorClient
    rows: list[Row]

    async def play(self, scenario: str, fault: Fault) -> Row:
        """Cause a fault under traffic, and check every promise."""
        began, traffic = time.time(), Traffic(self.simulator, self.project.system)
        async with flowing(traffic):
            await traffic.well(began, PATIENCE, FLOWING)
            over = await fault(self.project)
            await traffic.well(over, PATIENCE)
        stories = await traffic.settled(PATIENCE)
        said = await traffic.replies(stories)
        row = await self._row(scenario, stories, said, began, over)
        print(row)  # noqa: T201 - pytest shows it
        check(row, stories, said, over)
        self.rows.append(row)
        return row

    async def _row(
        self, scenario: str, stories: list[Story], said: Counter[str], began: float, over: float
    ) -> Row:
        again = await rescued_within(self.project, over)
        return Row(
            scenario,
            sent=len(stories),
            answered_200=sum(story.acknowledged_at is not None for story in stories),
            retried=sum(len(story.attempts) > 1 for story in stories),
            rescued_after=round(again, 1) if again > 0 else "",
            well_after=round(max([0.0, *troubles(stories, over)]), 1),
            lost=len(lost(stories)),
            double_handled=await double_handled(self.project),
            over_limit=await over_limit(self.project),
            duplicate_replies=said.total() - len(said),
            handlers_stopped=await logged(self.project, "lease lost", began),
            stale_settles=await stale_settles(self.project, began),
        )


@asynccontextmanager
async def flowing(traffic: Traffic) -> AsyncIterator[None]:
    """Send traffic for the length of the block."""
    async with asyncio.TaskGroup() as group:
        flow = group.create_task(traffic.flow())
        yield
        flow.cancel()


def check(row: Row, stories: list[Story], said: Counter[str], over: float) -> None:
    """Check every promise.

    Raises:
        AssertionError: one was broken.
    """
    expected = {f"{word} {story.event_id}" for story in stories for word in ("begun", "ended")}
    given_up = [story for story in stories if story.acknowledged_at is None]
    assert not given_up, f"the sender gave some up: {row}; the fault ended at {over}: {given_up}"
    assert not lost(stories), row
    assert not expected - set(said), f"replies are missing: {row}"
    assert row.double_handled == 0, row
    assert row.over_limit == 0, row
    assert row.duplicate_replies == 0, (row, [text for text, times in said.items() if times > 1])
    assert row.well_after < WELL_WITHIN, (row, troubles(stories, over))


def lost(stories: list[Story]) -> list[Story]:
    """Return the events that were acknowledged and not completed."""
    return [story for story in stories if story.acknowledged_at and story.outcome != "completed"]


def troubles(stories: list[Story], over: float) -> list[float]:
    """Return the times of trouble, in seconds after the end of the fault."""
    return sorted(moment - over for story in stories for moment in story.troubles)
