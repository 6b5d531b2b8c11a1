"""Schedules fire at the right times, through changes of the clocks and after an outage."""

from datetime import UTC, datetime, timedelta

import pytest

from surelane_service.cron import MISSED_AT_MOST, CatchUp, Cron, due_times

MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_time_that_the_clocks_skip_in_spring_fires_once_that_day() -> None:
    cron, day = Cron("30 2 * * *", "Europe/Berlin"), datetime(2026, 3, 28, 12, tzinfo=UTC)
    first = cron.next_after(day)
    second = cron.next_after(first)

    assert first == datetime(2026, 3, 29, 1, 0, tzinfo=UTC)  # 02:30 does not exist: the end of the gap
    assert second == datetime(2026, 3, 30, 0, 30, tzinfo=UTC)


def test_a_time_that_the_clocks_repeat_in_autumn_fires_once_that_day() -> None:
    cron, day = Cron("30 2 * * *", "Europe/Berlin"), datetime(2026, 10, 24, 12, tzinfo=UTC)
    first = cron.next_after(day)

    assert first == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert cron.next_after(first) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("catch_up", "fired"),
    [("none", []), ("one", [15]), ("all", [0, 5, 10, 15])],
)
def test_what_was_missed_is_caught_up_by_the_rule(catch_up: CatchUp, fired: list[int]) -> None:
    times, following = due_times(Cron("*/5 * * * *"), catch_up, MIDNIGHT, MIDNIGHT + timedelta(minutes=17))

    assert times == [MIDNIGHT + timedelta(minutes=minute) for minute in fired]
    assert following == MIDNIGHT + timedelta(minutes=20)


@pytest.mark.parametrize("catch_up", ["none", "one", "all"])
def test_a_time_that_has_just_come_fires_whatever_the_rule(catch_up: CatchUp) -> None:
    times, following = due_times(Cron("*/5 * * * *"), catch_up, MIDNIGHT, MIDNIGHT + timedelta(seconds=20))

    assert (times, following) == ([MIDNIGHT], MIDNIGHT + timedelta(minutes=5))


def test_a_year_of_missed_minutes_is_caught_up_in_bounded_steps() -> None:
    times, following = due_times(Cron("* * * * *"), "all", MIDNIGHT, MIDNIGHT + timedelta(days=365))

    assert len(times) == MISSED_AT_MOST
    assert following == times[-1] + timedelta(minutes=1)


@pytest.mark.parametrize(
    ("schedule", "time_zone"),
    [
        ("", "UTC"),
        ("x", "UTC"),
        ("* * * * * *", "UTC"),
        ("0 0 31 2 *", "UTC"),
        ("61 * * * *", "UTC"),
        ("* * * * *", "Mars/Base"),
    ],
)
def test_a_schedule_that_cannot_be_read_is_refused(schedule: str, time_zone: str) -> None:
    with pytest.raises(ValueError, match="schedule"):
        Cron(schedule, time_zone)
