"""With default settings: the events of a dead worker run again within seconds; a live worker's do not."""

import time
from collections.abc import Awaitable, Callable

import pytest

from tests.chaos import faults
from tests.chaos.faults import Fault
from tests.chaos.stage import Stage
from tests.chaos.witness import logged, repeated

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(420)]

RECOVERY = 5.0
"""Seconds from a worker's death until its events run again."""
TRIES = 3
"""A machine with much else to do may miss it once."""


@pytest.mark.parametrize(
    ("scenario", "fault"),
    [
        (f"default leases: a worker is cut off for {faults.SHORTLY} s", faults.worker_cut_off_briefly),
        (f"default leases: a worker stands still for {faults.LONG} s", faults.worker_frozen_for_long),
        (f"default leases: the database is stopped for {faults.DOWN} s", faults.database_stopped),
    ],
)
async def test_what_is_no_death_repeats_nothing(unhurried: Stage, scenario: str, fault: Fault) -> None:
    began = time.time()
    row = await unhurried.play(scenario, fault)
    # An outcome whose answer was lost is sent twice, and repeats nothing.
    assert (row.handlers_stopped, await logged(unhurried.project, "stale settle", began)) == (0, 0)
    assert await repeated(unhurried.project, began) == 0


@pytest.mark.parametrize(
    ("scenario", "fault"),
    [
        ("default leases: a worker is killed", faults.worker_killed),
        ("default leases: a worker's container is killed", faults.container_killed),
    ],
)
async def test_a_dead_workers_events_run_again_soon(unhurried: Stage, scenario: str, fault: Fault) -> None:
    async def rescued() -> float:
        row = await unhurried.play(scenario, fault)
        assert isinstance(row.rescued_after, float), "none was rescued"
        return row.rescued_after

    await within(RECOVERY, rescued)


async def within(bound: float, attempt: Callable[[], Awaitable[float]]) -> None:
    """Check that something takes less than so many seconds, once in a few tries."""
    for _ in range(TRIES):
        took = await attempt()
        print(f"it took {took:.1f} s")  # noqa: T201 - pytest shows it
        if took < bound:
            return
    pytest.fail(f"it took {took:.1f} s")
