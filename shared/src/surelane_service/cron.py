"""The times at which named schedules fire.

cronsim reads the five fields. It follows Debian's cron where a clock changes between winter and summer time.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

CatchUp = Literal["none", "one", "all"]
"""Which of the times that were missed while no worker ran are fired: none, the last one, or all."""

MISSED_AT_MOST = 1000
"""The most missed times that ``all`` fires at once; the rest follow at the next call."""

PUNCTUAL = timedelta(minutes=1)
"""A time that passed more recently than this was not missed."""


@dataclass(frozen=True, slots=True)
class Cron:
    """Five cron fields (``*/5 * * * *``) read in a time zone.

    Raises:
        ValueError: the fields or the time zone cannot be read, or never match.
    """

    schedule: str
    time_zone: str = "UTC"

    def __post_init__(self) -> None:
        if len(self.schedule.split()) != 5:
            raise ValueError(f"{self.schedule!r} is not a schedule: write five fields, such as */5 * * * *")
        try:
            self.next_after(datetime(2026, 1, 1, tzinfo=ZoneInfo(self.time_zone)))
        except (ZoneInfoNotFoundError, OSError, ValueError) as error:  # a directory of zones is an OSError
            raise ValueError(
                f"{self.time_zone!r} is not a time zone, or {self.schedule!r} not a schedule"
            ) from error

    def next_after(self, moment: datetime) -> datetime:
        """Return the first time after ``moment``, in UTC."""
        return self._next(moment)

    def last_until(self, moment: datetime) -> datetime:
        """Return the last time up to ``moment``, in UTC."""
        return self._next(moment + timedelta(seconds=1), reverse=True)

    def _next(self, moment: datetime, *, reverse: bool = False) -> datetime:
        try:
            found = next(CronSim(self.schedule, moment.astimezone(ZoneInfo(self.time_zone)), reverse=reverse))
        except (CronSimError, StopIteration) as error:
            raise ValueError(f"{self.schedule!r} is not a schedule, or has no next time") from error
        return found.astimezone(UTC)


def due_times(cron: Cron, catch_up: CatchUp, due: datetime, now: datetime) -> tuple[list[datetime], datetime]:
    """Return the times of a schedule to fire now, and when it is due next.

    Args:
        cron: the schedule.
        catch_up: which of the missed times are fired.
        due: the earliest time that has not been fired, not after ``now``.
        now: the database's time.

    Returns:
        The times to fire, oldest first, and the first time that is still to come.
    """
    if catch_up != "all":
        last = max(due, cron.last_until(now))
        fires = catch_up == "one" or now - last <= PUNCTUAL
        return [last] if fires else [], cron.next_after(now)
    times = [due]
    while len(times) < MISSED_AT_MOST and (moment := cron.next_after(times[-1])) <= now:
        times.append(moment)
    return times, cron.next_after(times[-1])
