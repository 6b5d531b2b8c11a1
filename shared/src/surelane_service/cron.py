"""When named schedules fire. cronsim reads the five fields and follows Debian's cron through changes of the clocks."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

CatchUp = Literal["none", "one", "all"]
"""What is fired of the times that were missed while no worker ran: none of them, the last one, or all."""

MISSED_AT_MOST = 1000
"""So many missed times are fired at once by ``all``; the rest at the next look."""

PUNCTUAL = timedelta(minutes=1)
"""A time that passed no longer ago than this was not missed."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A schedule: five cron fields (``*/5 * * * *``) read in a time zone.

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
        """The first time after ``moment``, in UTC."""
        return self._next(moment)

    def last_until(self, moment: datetime) -> datetime:
        """The last time up to ``moment``, in UTC."""
        return self._next(moment + timedelta(seconds=1), reverse=True)

    def _next(self, moment: datetime, *, reverse: bool = False) -> datetime:
        try:
            found = next(CronSim(self.schedule, moment.astimezone(ZoneInfo(self.time_zone)), reverse=reverse))
        except (CronSimError, StopIteration) as error:
            raise ValueError(f"{self.schedule!r} is not a schedule, or never comes true") from error
        return found.astimezone(UTC)


def due_times(cron: Cron, catch_up: CatchUp, due: datetime, now: datetime) -> tuple[list[datetime], datetime]:
    """What to fire of a schedule that is due, and when it is due next.

    Args:
        cron: the schedule.
        catch_up: what becomes of missed times.
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
