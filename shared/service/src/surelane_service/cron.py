"""Named schedules: the times at which they fire, the rows of ``agent.cron``, and how workers fire those that are due.

cronsim reads the five fields. It follows Debian's cron where a clock changes between winter and summer time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from hashlib import sha256
from typing import Annotated, Any, Literal, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError
from pydantic import StringConstraints

from surelane.calls import Calls
from surelane.codec import Codec
from surelane.jobs import Priority
from surelane.json_text import json_text

MISSED_AT_MOST = 1000
"""The most missed times that ``all`` fires at once; the rest follow at the next call."""

CatchUp = Literal["none", "one", "all"] | int
"""Which of the times that were missed while no worker ran are fired: none, the last one, so many last ones, or all."""

CatchUpText = Annotated[str, StringConstraints(pattern=r"^(none|one|all|[1-9][0-9]{0,2}|1000)$")]
"""The same as the database and the API have it."""

Overlap = Literal["allow", "skip", "queue", "replace"]
"""While an earlier job of its schedule is live, a firing stores its own, none, one behind it, or one in its place."""

LONGEST_JITTER = timedelta(days=1)


def read_catch_up(text: str) -> CatchUp:
    """Return a catch-up rule as the database stores it, or as people write it. ``ValueError``: it is none."""
    if text not in ("none", "one", "all") and not (text.isdecimal() and 1 <= int(text) <= MISSED_AT_MOST):
        raise ValueError(
            f"{text} is not a catch-up rule; write none, one, all or a number up to {MISSED_AT_MOST}"
        )
    return int(text) if text.isdecimal() else cast("CatchUp", text)


def zone_of(name: str) -> tzinfo:
    """Return a time zone. UTC is known without a database of time zones.

    Raises:
        ValueError: there is none of that name, or no database of time zones at all.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, OSError, ValueError) as error:  # a directory of zones is an OSError
        if name in ("UTC", "Etc/UTC"):
            return UTC
        raise ValueError(
            f"{name!r} is not a time zone"
            if _are_zones_installed()
            else "there are no time zones: install tzdata"
        ) from error


@cache
def _are_zones_installed() -> bool:
    """Tell whether there is a database of time zones. To look takes 40 ms, and a bad schedule asks each minute."""
    return bool(available_timezones())


PUNCTUAL = timedelta(minutes=1)
"""A time that passed more recently than this was not missed."""


@dataclass(frozen=True, slots=True)
class Cron:
    """Five cron fields (``*/5 * * * *``) read in a time zone.

    Attributes:
        jitter: how long after its time a firing comes, at most. A time is delayed until the next one at most.
        name: the schedule's. Its times have other delays than those of other names, and all workers agree on them.

    Raises:
        ValueError: the fields or the time zone cannot be read, or never match.
    """

    schedule: str
    time_zone: str = "UTC"
    jitter: timedelta = timedelta(0)
    name: str = ""

    def __post_init__(self) -> None:
        if not timedelta(0) <= self.jitter <= LONGEST_JITTER:
            raise ValueError(f"the jitter of a schedule is at most a day, not {self.jitter}")
        if len(self.schedule.split()) != 5:
            raise ValueError(f"{self.schedule!r} is not a schedule: write five fields, such as */5 * * * *")
        self.next_after(datetime(2026, 1, 1, tzinfo=zone_of(self.time_zone)))

    def next_after(self, moment: datetime, *, reverse: bool = False) -> datetime:
        """Return the first time after ``moment``, in UTC; with ``reverse`` the last one before it."""
        try:
            found = next(CronSim(self.schedule, moment.astimezone(zone_of(self.time_zone)), reverse=reverse))
        except (CronSimError, StopIteration) as error:
            raise ValueError(f"{self.schedule!r} is not a schedule, or has no next time") from error
        return found.astimezone(UTC)

    def last_until(self, moment: datetime) -> datetime:
        """Return the last time up to ``moment``, in UTC."""
        return self.next_after(moment.replace(microsecond=0) + timedelta(seconds=1), reverse=True)

    def fires_at(self, time: datetime) -> datetime:
        """Return when one of its times fires: after its delay, and before the next time."""
        if not self.jitter:
            return time
        digest = sha256(f"{self.name}:{time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}".encode()).digest()
        share = int.from_bytes(digest[:4]) / 2**32
        return time + share * min(self.jitter, self.next_after(time) - time)

    def next_firing(self, moment: datetime) -> datetime:
        """Return when the first time after ``moment`` fires."""
        return self.fires_at(self.next_after(moment))


def due_times(cron: Cron, catch_up: CatchUp, due: datetime, now: datetime) -> tuple[list[datetime], datetime]:
    """Return the times of a schedule to fire now, oldest first, and when the first one still to come fires.

    ``due``: when the earliest time that has not been fired was to fire, not after ``now``, the database's time.
    """
    first = cron.last_until(due) if cron.jitter else due
    if catch_up == "all":
        times = [first]
        while len(times) < MISSED_AT_MOST and cron.fires_at(moment := cron.next_after(times[-1])) <= now:
            times.append(moment)
        return times, cron.next_firing(times[-1])
    last = max(first, cron.last_until(now))
    if last > first and cron.fires_at(last) > now:
        last = max(first, cron.last_until(last - timedelta(seconds=1)))
    following = cron.next_firing(last)
    if catch_up == "none" and now - cron.fires_at(last) > PUNCTUAL:
        return [], following
    times, most = [last], catch_up if isinstance(catch_up, int) else 1
    while len(times) < most and times[0] > first:
        times.insert(0, max(first, cron.last_until(times[0] - timedelta(seconds=1))))
    return times, following


@dataclass(frozen=True, slots=True)
class DueCron:
    """A schedule that is due. A worker's own clock decides nothing: ``now`` is the database's time.

    ``next_at``: when the earliest time that has not been fired was to fire.
    """

    name: str
    kind: str
    schedule: str
    time_zone: str
    catch_up: str
    jitter: timedelta
    next_at: datetime
    now: datetime


class Schedules:
    """The calls about named schedules that the worker's and the operator's clients share."""

    calls: Calls
    codec: Codec

    async def set_cron(
        self,
        name: str,
        *,
        kind: str,
        schedule: str,
        next_at: datetime | None = None,
        payload: Mapping[str, Any] | None = None,
        time_zone: str = "UTC",
        catch_up: CatchUp = "one",
        paused: bool | None = False,
        priority: Priority = 1,
        overlap: Overlap = "allow",
        jitter: timedelta = timedelta(0),
    ) -> None:
        """Create or change a :class:`Cron`. An unchanged one keeps its next firing, so declaring it again skips none.

        Args:
            kind, payload, priority: of its jobs. They have ``cron`` (the name) and ``scheduled_at`` besides.
            next_at: its first firing; by default the first one after now.
            paused: a paused schedule fires nothing; ``None`` keeps an existing schedule's state.

        Raises:
            ValueError: the schedule or the time zone cannot be read.
            InvalidInput: another value cannot be stored.
        """
        following = next_at or Cron(schedule, time_zone, jitter, name).next_firing(datetime.now(UTC))
        text = json_text(await self.codec.seal_payload(payload or {}))
        rules = time_zone, str(catch_up), paused, priority, overlap, jitter
        await self.calls.call("set_cron", name, kind, schedule, following, text, *rules)

    async def delete_cron(self, name: str) -> bool:
        """Delete a schedule; return false when there is none of that name."""
        return bool(await self.calls.call("delete_cron", name))

    async def next_cron(self) -> float | None:
        """Return the seconds until the next schedule becomes due; ``None`` where there is none."""
        return await self.calls.call("next_cron")

    async def due_cron(self) -> list[DueCron]:
        """Return the schedules that are due, the longest overdue first."""
        rows = await self.calls.fetch(
            "select name, kind, schedule, time_zone, catch_up, jitter, next_at, now_at from agent.due_cron()"
        )
        return [DueCron(*row) for row in rows]

    async def fire_cron(
        self, name: str, due: datetime, times: Sequence[datetime], following: datetime
    ) -> int:
        """Enqueue a job for each of ``times`` if a schedule is still due at ``due``: of all who try, one succeeds.

        ``due`` is :attr:`DueCron.next_at`; ``following`` is when it is due next. Return how many were enqueued.
        """
        return await self.calls.call("fire_cron", name, due, times, following)

    async def note_cron(self, name: str, due: datetime, problem: str, following: datetime | None) -> None:
        """Note why a due schedule does not fire. It is due again at ``following``; ``None``: it stays due."""
        await self.calls.call("note_cron", name, due, problem, following)
