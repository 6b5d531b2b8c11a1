"""Schedules fire at the right times, through changes of the clocks and after an outage."""

import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from surelane_service.cron import MISSED_AT_MOST, CatchUp, Cron, due_times

MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("day", "fires"),
    [
        ((3, 28), [(3, 29, 1, 0), (3, 30, 0, 30)]),  # 02:30 does not exist in spring: the end of the gap
        ((10, 24), [(10, 25, 0, 30), (10, 26, 1, 30)]),
    ],
)
def test_a_time_that_the_clocks_skip_or_repeat_fires_once_that_day(
    day: tuple[int, int], fires: list[tuple[int, int, int, int]]
) -> None:
    at = datetime(2026, *day, 12, tzinfo=UTC)
    for month, date, hour, minute in fires:
        at = Cron("30 2 * * *", "Europe/Berlin").next_after(at)
        assert at == datetime(2026, month, date, hour, minute, tzinfo=UTC)


@pytest.mark.parametrize(
    ("catch_up", "fired"),
    [
        *(("none", []), ("one", [15]), ("all", [0, 5, 10, 15])),
        *((2, [10, 15]), (3, [5, 10, 15]), (1000, [0, 5, 10, 15])),
    ],
)
def test_what_was_missed_is_caught_up_by_the_rule(catch_up: CatchUp, fired: list[int]) -> None:
    times, following = due_times(Cron("*/5 * * * *"), catch_up, MIDNIGHT, MIDNIGHT + timedelta(minutes=17))

    assert times == [MIDNIGHT + timedelta(minutes=minute) for minute in fired]
    assert following == MIDNIGHT + timedelta(minutes=20)
    times, following = due_times(Cron("* * * * *"), "all", MIDNIGHT, MIDNIGHT + timedelta(days=365))
    assert len(times) == MISSED_AT_MOST, "a year is caught up in bounded steps"
    assert following == times[-1] + timedelta(minutes=1)


JITTERED = Cron("*/5 * * * *", jitter=timedelta(minutes=2), name="often")


def test_a_jittered_time_fires_later_by_a_delay_that_all_workers_agree_on() -> None:
    times = [MIDNIGHT + timedelta(minutes=5 * nth) for nth in range(200)]
    delays = [JITTERED.fires_at(time) - time for time in times]

    assert delays == [replace(JITTERED).fires_at(time) - time for time in times]
    assert delays != [replace(JITTERED, name="other").fires_at(time) - time for time in times]
    assert timedelta(0) <= min(delays) < timedelta(seconds=20)
    assert timedelta(seconds=100) < max(delays) < timedelta(minutes=2)


def test_a_jitter_longer_than_the_pause_between_two_times_does_not_swap_them() -> None:
    cron = replace(JITTERED, jitter=timedelta(hours=3))
    fires = [cron.fires_at(MIDNIGHT + timedelta(minutes=5 * nth)) for nth in range(200)]

    assert fires == sorted(fires)
    assert all(cron.last_until(at) == MIDNIGHT + timedelta(minutes=5 * nth) for nth, at in enumerate(fires))


@pytest.mark.parametrize("catch_up", ["none", "one", 1, "all"])
def test_a_jittered_time_fires_under_its_own_name_and_not_before(catch_up: CatchUp) -> None:
    at, second = (JITTERED.fires_at(MIDNIGHT + timedelta(minutes=minute)) for minute in (0, 5))

    assert JITTERED.next_firing(MIDNIGHT - timedelta(seconds=1)) == at
    assert due_times(JITTERED, catch_up, at, at) == ([MIDNIGHT], second)
    just_before = second - timedelta(milliseconds=1)
    missed, following = due_times(JITTERED, catch_up, at, just_before)
    assert missed == ([] if catch_up == "none" else [MIDNIGHT])
    assert following == second


@pytest.mark.parametrize("catch_up", ["none", "one", "all"])
def test_a_time_that_has_just_come_fires_whatever_the_rule(catch_up: CatchUp) -> None:
    times, following = due_times(Cron("*/5 * * * *"), catch_up, MIDNIGHT, MIDNIGHT + timedelta(seconds=20))

    assert (times, following) == ([MIDNIGHT], MIDNIGHT + timedelta(minutes=5))


@pytest.mark.parametrize(
    ("schedule", "time_zone"),
    [
        *((each, "UTC") for each in ("", "x", "* * * * * *", "0 0 31 2 *", "61 * * * *")),
        ("* * * * *", "Mars/Base"),
    ],
)
def test_a_schedule_that_cannot_be_read_is_refused(schedule: str, time_zone: str) -> None:
    with pytest.raises(ValueError, match=r"is not a (schedule|time zone)"):
        Cron(schedule, time_zone)


ALONE = """
import sys
sys.modules["tzdata"] = None
from datetime import UTC, datetime
from surelane_service.cron import Cron
print(Cron("0 3 * * *").next_after(datetime(2026, 1, 1, tzinfo=UTC)))
try:
    Cron("0 3 * * *", "Europe/Berlin")
except ValueError as error:
    print(error)
"""


def test_utc_needs_no_database_of_time_zones() -> None:
    env = {**os.environ, "PYTHONTZPATH": ""}
    done = subprocess.run([sys.executable, "-c", ALONE], env=env, capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == "2026-01-01 03:00:00+00:00"
    assert "there are no time zones: install tzdata" in second
