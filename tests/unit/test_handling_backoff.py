"""The pauses between attempts grow within their bounds."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from surelane_service.durations import jittered
from surelane_worker.handling.outcomes import Backoff


def test_pause_grows_with_the_square_of_the_attempt() -> None:
    backoff = Backoff(timedelta(seconds=10), timedelta(hours=1), spread=lambda: 0.5)
    assert [backoff.pause(attempt) for attempt in (1, 2, 3, 4)] == [10, 40, 90, 160]


def test_jitter_spreads_by_a_tenth_to_both_sides() -> None:
    low = Backoff(timedelta(seconds=10), timedelta(hours=1), spread=lambda: 0.0)
    high = Backoff(timedelta(seconds=10), timedelta(hours=1), spread=lambda: 1.0)
    assert (low.pause(1), high.pause(1)) == (9, 11)


@given(attempt=st.integers(-5, 10**6), spread=st.floats(0, 1, exclude_max=True))
def test_pause_is_never_negative_nor_longer_than_the_cap(attempt: int, spread: float) -> None:
    backoff = Backoff(timedelta(seconds=10), timedelta(minutes=5), spread=lambda: spread)
    assert 0 < backoff.pause(attempt) <= 300


def test_jittered_intervals_are_never_shorter() -> None:
    assert jittered(timedelta(seconds=5), spread=lambda: 0.0) == 5
    assert jittered(timedelta(seconds=5), spread=lambda: 1.0) == 6.5
