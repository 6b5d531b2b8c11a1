"""After any fault, each acknowledged event ends in history, was handled by one worker at a time and answered once."""

import asyncio
import json

import pytest

from tests.chaos import faults
from tests.chaos.faults import Fault
from tests.chaos.stage import Stage

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(420)]


@pytest.mark.parametrize(
    ("scenario", "fault"),
    [
        ("ingest is killed", faults.ingest_killed),
        ("the database is killed", faults.database_crashed),
        (f"every connection is taken for {faults.FULL} s", faults.connections_taken),
    ],
)
async def test_everything_acknowledged_is_answered_once(stage: Stage, scenario: str, fault: Fault) -> None:
    await stage.play(scenario, fault)


async def test_a_database_that_hangs_is_survived(stage: Stage) -> None:
    row = await stage.play(f"the database hangs for {faults.FROZEN} s", faults.database_frozen)
    assert row.retried > 0


@pytest.mark.parametrize(
    ("scenario", "fault"),
    [
        (f"a worker is cut off for {faults.AWAY} s", faults.worker_cut_off),
        (f"a worker stands still for {faults.AWAY} s", faults.worker_frozen),
    ],
)
async def test_a_worker_that_outstays_its_lease_is_fenced(stage: Stage, scenario: str, fault: Fault) -> None:
    row = await stage.play(scenario, fault)
    # The settles of this time arrive late, if the connection survives. Handlers that still ran are stopped.
    assert row.handlers_stopped + row.stale_settles > 0, "it held nothing"


async def test_an_open_transaction_that_locks_events_holds_up_no_others(stage: Stage) -> None:
    row = await stage.play(
        f"an open transaction locks waiting events for {faults.HELD} s", faults.events_locked
    )
    assert row.handlers_stopped == 0, "a lease was lost behind a lock"


async def test_after_all_of_them_no_rule_of_the_queue_is_broken(stage: Stage) -> None:
    """The audit sees the heads, claims, slots, keys and messages that the faults have left."""
    command = ("run", "--rm", "--no-deps", "--entrypoint", "surelane", "operator", "verify", "--json")
    said = json.loads(await asyncio.to_thread(stage.project.compose, *command, check=False))
    assert {each["level"] for each in said["findings"]} == {"ok"}, said
