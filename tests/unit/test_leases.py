"""A worker gives up a claim in time."""

import asyncio
from datetime import timedelta
from unittest.mock import MagicMock, sentinel

import pytest

from surelane_service.engine import DEAD_FOR
from surelane_worker.leasing import LONGEST_PAUSE, Capacity, Leases, Work
from surelane_worker.observing.metrics import Metrics


@pytest.mark.parametrize("lease", [timedelta(seconds=2), timedelta(minutes=10), DEAD_FOR * 12])
def test_a_claim_is_believed_until_its_lease_or_a_rescue_ends_it(lease: timedelta) -> None:
    leases = Leases(sentinel.queue, lease, Metrics(), Capacity())
    assert leases.ends(100.0) == 100.0 + min(lease, DEAD_FOR).total_seconds()


def test_two_lost_heartbeats_end_no_claim() -> None:
    assert 3 * LONGEST_PAUSE <= DEAD_FOR


async def test_a_worker_that_stood_still_posts_nothing_under_a_claim_that_may_be_lost() -> None:
    leases = Leases(sentinel.queue, timedelta(seconds=2), MagicMock(), Capacity())
    now = asyncio.get_running_loop().time()
    standing, lost = [Work(MagicMock(), [MagicMock(body="")], ends, now) for ends in (now + 600, now - 1)]
    leases.add(standing)
    leases.add(lost)
    await leases.hold(standing)
    with pytest.raises(asyncio.CancelledError):
        await leases.hold(lost)
