"""A worker gives up a claim in time."""

from datetime import timedelta
from unittest.mock import sentinel

import pytest

from surelane_service.engine import DEAD_FOR
from surelane_worker.leasing import LONGEST_PAUSE, Capacity, Leases
from surelane_worker.observing.metrics import Metrics


@pytest.mark.parametrize("lease", [timedelta(seconds=2), timedelta(minutes=10), DEAD_FOR * 12])
def test_a_claim_is_believed_until_its_lease_or_a_rescue_ends_it(lease: timedelta) -> None:
    leases = Leases(sentinel.queue, lease, Metrics(), Capacity())
    assert leases.ends(100.0) == 100.0 + min(lease, DEAD_FOR).total_seconds()


def test_two_lost_heartbeats_end_no_claim() -> None:
    assert 3 * LONGEST_PAUSE <= DEAD_FOR
