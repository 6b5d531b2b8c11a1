"""Outcomes as values: what a handler may return to say how its event goes on.

Returning ``None`` or anything JSON can hold means :class:`Done`; raising an exception means a failed attempt.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from surelane.jobs import Continuation, Job
from surelane_service.durations import parse_duration

Pause = timedelta | float | str
"""A duration: a timedelta, seconds, or text such as ``"90s"`` or ``"2m"``. At most 3,650 days."""

LONGEST = timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class Done:
    """The event is finished. ``result``, anything JSON can hold, is kept in history."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class Retry:
    """The attempt failed and counts; the next one comes after ``after`` if any remain. Its entity waits for it."""

    after: Pause
    reason: str = "retry requested"

    def __post_init__(self) -> None:
        duration(self.after)


@dataclass(frozen=True, slots=True)
class Discard:
    """The event ends now as failed, whatever attempts remain. ``reason`` is kept in history: a few words."""

    reason: str


@dataclass(frozen=True, slots=True)
class Snooze:
    """The event is put off for ``pause``; the attempt does not count, and the entity's other events go on meanwhile."""

    pause: Pause

    def __post_init__(self) -> None:
        duration(self.pause)


@dataclass(frozen=True, slots=True)
class FanOut:
    """The event is finished and goes on in jobs: its children, and ``then``, which runs once when all have ended.

    One transaction completes the event and stores the jobs, so an attempt that is repeated starts none twice.
    """

    children: Sequence[Job]
    then: Continuation
    result: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "children", tuple(self.children))
        for job in (*self.children, self.then):
            if not isinstance(job, Job):
                raise TypeError(f"FanOut takes jobs, not {type(job).__name__}")


@dataclass(frozen=True, slots=True)
class Await:
    """The event is parked until its answer comes (:meth:`surelane.Queue.answer_event`); past ``until`` it expires."""

    until: datetime

    def __post_init__(self) -> None:
        moment(self.until)


NOTHING_TO_KEEP = Done()

Outcome = Done | Retry | Discard | Snooze | FanOut | Await


def outcome_of(returned: object) -> Outcome:
    """The outcome that a handler's return value stands for."""
    if returned is None:
        return NOTHING_TO_KEEP
    return returned if isinstance(returned, Outcome) else Done(returned)


def duration(pause: Pause) -> timedelta:
    """A pause as a timedelta.

    Raises:
        ValueError: it cannot be read, or is longer than 3,650 days.
    """
    parsed = parse_duration(pause)
    if parsed > LONGEST:
        raise ValueError(f"a pause of {parsed} is longer than {LONGEST.days} days")
    return parsed


def moment(until: object) -> datetime:
    """A time in UTC.

    Raises:
        TypeError: it is no datetime.
        ValueError: it has no time zone, or lies outside the years 1 to 9999 in UTC.
    """
    if not isinstance(until, datetime):
        raise TypeError(f"a datetime is needed, not {type(until).__name__}")
    if until.utcoffset() is None:
        raise ValueError(f"{until!r} has no time zone")
    try:
        return until.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{until!r} is out of range") from None
