"""The command says times by their distance, and cuts what is too wide."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from surelane_operator.cli.output import ago, end, middle

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.4, "now"),
        (59.9, "59 s ago"),
        (61, "1 min ago"),
        (7200, "2 h ago"),
        (-90, "in 1 min"),
        (90_000, "1 d ago"),
        (40 * 86_400, r"2025-12-\d\d \S+"),
    ],
)
def test_times_are_said_by_their_distance_and_old_ones_as_dates(seconds: float, said: str) -> None:
    assert re.fullmatch(said, ago(NOW - timedelta(seconds=seconds), NOW))


@pytest.mark.parametrize("width", [1, 2, 3, 6, 10])
def test_cut_text_is_as_wide_as_it_may_be(width: int) -> None:
    for cut in (middle, end):
        assert len(cut("0123456789abcdef", width)) == width
        assert cut("short", 5) == "short"
    assert (middle("0123456789", 5), end("0123456789", 5)) == ("01…89", "…6789")
