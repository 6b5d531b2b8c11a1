"""The pauses between attempts grow within their bounds."""

import random
from contextlib import AbstractContextManager
from datetime import timedelta
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from surelane_service.durations import jittered
from surelane_worker.handling.outcomes import Backoff


def drawing(spread: float) -> AbstractContextManager[object]:
    """Let every random number be this part of the way between its bounds, for the length of a block."""
    return patch.object(random, "uniform", lambda low, high: low + spread * (high - low))


def test_pause_grows_with_the_square_of_the_attempt_and_jitter_is_a_tenth() -> None:
    backoff = Backoff(timedelta(seconds=10), timedelta(hours=1))
    with drawing(0.5):
        assert [backoff.pause(attempt) for attempt in (1, 2, 3, 4)] == [10, 40, 90, 160]
    for spread, pause, seconds in ((0.0, 9, 5), (1.0, 11, 6.5)):  # it makes no interval shorter
        with drawing(spread):
            assert backoff.pause(1) == pause
            assert jittered(timedelta(seconds=5)) == seconds


@given(attempt=st.integers(-5, 10**6), spread=st.floats(0, 1, exclude_max=True))
def test_pause_is_never_negative_nor_longer_than_the_cap(attempt: int, spread: float) -> None:
    with drawing(spread):
        assert 0 < Backoff(timedelta(seconds=10), timedelta(minutes=5)).pause(attempt) <= 300
