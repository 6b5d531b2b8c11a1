"""The worker's duties run beside the claimer, and it gives up a claim in time."""

import asyncio
from datetime import timedelta
from typing import Any, cast
from unittest.mock import AsyncMock, MagicMock, Mock, sentinel

import asyncpg
import pytest

from surelane.errors import DatabaseUnavailable
from surelane_service.engine import DEAD_FOR, Settled
from surelane_worker import Handlers
from surelane_worker.assembly import Assembly, Pools
from surelane_worker.duties import Retention, Uninstalls, beside
from surelane_worker.handling.threads import LOST
from surelane_worker.leasing import LONGEST_PAUSE, Capacity, Leases, Work
from surelane_worker.observing.metrics import Metrics
from surelane_worker.observing.tracing import Observer
from surelane_worker.worker_settings import WorkerSettings


async def test_a_duty_that_crashes_begins_again_and_ends_no_other() -> None:
    begun, again = 0, asyncio.Event()
    other_ended = False

    async def crashes() -> None:
        nonlocal begun
        begun += 1
        if begun == 3:
            again.set()
            await asyncio.Event().wait()
        raise RuntimeError("a fault of ours")

    async def other() -> None:
        nonlocal other_ended
        try:
            await asyncio.Event().wait()
        finally:
            other_ended = True

    async with beside(crashes, other, restart=0.0):
        async with asyncio.timeout(30):
            await again.wait()
        assert not other_ended
    assert begun == 3
    assert other_ended


@pytest.mark.parametrize(("retention", "erasing"), [("off", "30d"), ("30d", "off")])
async def test_what_is_off_drops_none(retention: str, erasing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://nowhere/")
    monkeypatch.setenv("SURELANE_HISTORY_RETENTION", retention)
    monkeypatch.setenv("SURELANE_ERASE_UNINSTALLED_AFTER", erasing)
    pools = Pools(*[Mock(spec=asyncpg.Pool)] * 5)
    worker = Assembly(cast("Any", WorkerSettings)(), Handlers(), pools, sentinel.slack, Observer(Metrics()))
    owners = [getattr(duty, "__self__", None) for duty in worker.duties()]
    assert any(isinstance(owner, Retention) for owner in owners) == (retention != "off")
    assert any(isinstance(owner, Uninstalls) for owner in owners) == (erasing != "off")


@pytest.mark.parametrize("lease", [timedelta(seconds=2), timedelta(minutes=10), DEAD_FOR * 12])
def test_a_claim_is_believed_until_its_lease_or_a_rescue_not_two_beats_end_it(lease: timedelta) -> None:
    leases = Leases(sentinel.queue, lease, Metrics(), Capacity())
    assert leases.ends(100.0) == 100.0 + min(lease, DEAD_FOR).total_seconds()
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


def test_an_event_that_is_claimed_again_is_not_handled_under_its_earlier_claim() -> None:
    """After a failover that lost the first claim, the second has its number."""
    leases, event = Leases(sentinel.queue, timedelta(minutes=10), MagicMock(), Capacity()), MagicMock(body="")
    earlier, later = [Work(MagicMock(), [event], 600.0, 0.0) for _ in range(2)]
    leases.add(earlier)
    leases.add(later)
    assert (earlier.stopped, later.stopped) == (LOST, None)
    leases.drop([*earlier.claims, *later.claims])
    settled, again = [Work(MagicMock(), [event], 600.0, 0.0) for _ in range(2)]
    settled.claims[0].outcome = "complete"
    leases.add(settled)
    leases.add(again)
    assert (settled.stopped, again.stopped) == (None, None)


@pytest.mark.parametrize("answer", [Settled.DONE, Settled.STALE, DatabaseUnavailable(), TimeoutError()])
async def test_where_a_heartbeat_is_overdue_the_database_says_whether_the_claim_stands(answer: Any) -> None:
    """A standby that took over knows no session of a worker that stood still, and rescues its events."""
    extend = AsyncMock(side_effect=answer if isinstance(answer, Exception) else [[answer]])
    leases = Leases(Mock(extend_leases=extend), timedelta(minutes=10), MagicMock(), Capacity())
    late = asyncio.get_running_loop().time() - LONGEST_PAUSE.total_seconds() * 1.5
    work = Work(MagicMock(), [MagicMock(body="")], leases.ends(late), late)
    leases.add(work)
    if answer is Settled.STALE:
        with pytest.raises(asyncio.CancelledError):
            await leases.hold(work)
    else:
        await leases.hold(work)
        await leases.hold(work)
    assert extend.await_count == (2 if isinstance(answer, Exception) else 1)
