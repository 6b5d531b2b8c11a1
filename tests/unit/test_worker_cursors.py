"""The cursor rules."""

from datetime import UTC, datetime, timedelta

from surelane.events import Event
from surelane_worker.cursors import FULL_SCAN_SHARE, LANES, MARGIN, Cursors

T0 = datetime(2025, 1, 1, tzinfo=UTC)
KINDS = ["a", "b"]
PERIOD = timedelta(seconds=5)


def seen(lane: int, kind: str, after: float, head: bool = True) -> Event:
    """A claimed event that was visible since ``after`` seconds."""
    vt = T0 + timedelta(seconds=after)
    return Event(1, kind, T0, 1, 1, vt, "{}", prior_vt=vt if head else None, lane=lane)


def place(lane: int, kind: str) -> int:
    return lane * len(KINDS) + KINDS.index(kind)


def scanned(
    cursors: Cursors, events: list[Event], *, now: float, took: float = 0.001, exhausted: bool = True
) -> None:
    cursors.learn(KINDS, cursors.starts(KINDS, now), events, exhausted=exhausted, now=now, took=took)


def test_first_claim_scans_in_full() -> None:
    assert Cursors(PERIOD).starts(KINDS, 0.0) == [None] * LANES * 2


def test_cursor_stands_a_margin_behind_the_newest_seen() -> None:
    cursors = Cursors(PERIOD)
    scanned(cursors, [seen(3, "a", 10), seen(3, "a", 30), seen(3, "a", 20), seen(4, "b", 5)], now=1.0)
    starts = cursors.starts(KINDS, 2.0)
    assert starts[place(3, "a")] == T0 + timedelta(seconds=30) - MARGIN
    assert starts[place(4, "b")] == T0 + timedelta(seconds=5) - MARGIN
    assert starts[place(3, "b")] is None


def test_cursor_never_moves_back() -> None:
    cursors = Cursors(PERIOD)
    scanned(cursors, [seen(3, "a", 30)], now=1.0)
    scanned(cursors, [seen(3, "a", 10)], now=2.0)
    assert cursors.starts(KINDS, 3.0)[place(3, "a")] == T0 + timedelta(seconds=30) - MARGIN


def test_members_that_were_not_heads_move_no_cursor() -> None:
    cursors = Cursors(PERIOD)
    scanned(cursors, [seen(3, "a", 30, head=False)], now=1.0)
    assert cursors.starts(KINDS, 2.0)[place(3, "a")] is None


def test_each_lane_is_scanned_in_full_again_after_the_period() -> None:
    cursors = Cursors(PERIOD)
    scanned(cursors, [seen(3, "a", 30)], now=1.0)
    assert cursors.starts(KINDS, 5.9)[place(3, "a")] is not None
    assert cursors.starts(KINDS, 6.0)[place(3, "a")] is None


def test_slow_full_scans_are_repeated_the_more_rarely() -> None:
    cursors = Cursors(PERIOD)
    scanned(cursors, [seen(3, "a", 30)], now=1.0, took=1.0)
    assert cursors.starts(KINDS, 0.9 + 1.0 / FULL_SCAN_SHARE)[place(3, "a")] is not None
    assert cursors.starts(KINDS, 1.0 + 1.0 / FULL_SCAN_SHARE)[place(3, "a")] is None


def test_lanes_that_a_full_batch_did_not_reach_are_still_due() -> None:
    cursors = Cursors(PERIOD)
    scanned(cursors, [seen(3, "a", 30)], now=1.0)
    scanned(cursors, [seen(7, "a", 40)], now=7.0, exhausted=False)
    starts = cursors.starts(KINDS, 8.0)
    assert starts[place(7, "a")] is not None
    assert starts[place(3, "a")] is None


def test_forgotten_cursors_scan_in_full() -> None:
    cursors = Cursors(PERIOD)
    scanned(cursors, [seen(3, "a", 30)], now=1.0)
    cursors.forget()
    assert cursors.starts(KINDS, 2.0) == [None] * LANES * 2


def test_cursors_are_kept_while_other_kinds_are_claimed() -> None:
    cursors = Cursors(PERIOD)
    scanned(cursors, [seen(3, "a", 30)], now=1.0)
    cursors.learn(["b"], cursors.starts(["b"], 1.5), [], exhausted=True, now=1.5, took=0.001)
    assert cursors.starts(KINDS, 2.0)[place(3, "a")] is not None
