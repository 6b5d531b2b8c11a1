"""Outcomes: how an attempt ended. A handler may return one, or it follows from what the handler returned or raised.

One value travels from the handler to ``agent.settle`` and, by its name, into the history row.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from surelane.jobs import Continuation, Job
from surelane_service.durations import parse_duration

Pause = timedelta | float | str
"""A duration: a timedelta, seconds, or text such as ``"90s"`` or ``"2m"``. At most 3,650 days."""


@dataclass(frozen=True, slots=True)
class Complete:
    """Complete the event. ``result``, anything JSON can hold, is kept in history."""

    name: ClassVar = "complete"
    result: Any = None


@dataclass(frozen=True, slots=True)
class Fail:
    """Fail the attempt with the exception that the handler raised. Another attempt follows if any remain."""

    name: ClassVar = "fail"
    error: BaseException


@dataclass(frozen=True, slots=True)
class Retry:
    """Fail the attempt; the next one comes after ``after`` if any remain. The event's group waits for it."""

    name: ClassVar = "retry"
    after: Pause
    reason: str = "retry requested"

    def __post_init__(self) -> None:
        duration(self.after)


@dataclass(frozen=True, slots=True)
class Snooze:
    """Put the event off for ``pause``. The attempt does not count, and its group's other events go on meanwhile."""

    name: ClassVar = "snooze"
    pause: Pause

    def __post_init__(self) -> None:
        duration(self.pause)


@dataclass(frozen=True, slots=True)
class Discard:
    """End the event as failed, even if attempts remain. ``reason``, a few words, is kept in history."""

    name: ClassVar = "discard"
    reason: str


@dataclass(frozen=True, slots=True)
class Undone:
    """End the event with the outcome that it had before its undos. A handler does not return it."""

    name: ClassVar = "undone"


@dataclass(frozen=True, slots=True)
class Release:
    """Return the event to the queue at once. The attempt does not count."""

    name: ClassVar = "release"


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Give the event, in its place, to workers that have the version that its run began under; no attempt counts."""

    name: ClassVar = "snooze"
    version: str


MOST_CHILDREN = 10_000
"""Children of one fan-out. More would take longer than the database gives a statement."""


@dataclass(frozen=True, slots=True)
class FanOut:
    """Complete the event and store its children, and ``then``, which runs once when all of them have ended.

    One transaction does both, so a repeated attempt starts no job twice. There are at most 10,000 children.
    """

    name: ClassVar = "fan_out"
    children: Sequence[Job]
    then: Continuation
    result: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "children", tuple(self.children))
        if len(self.children) > MOST_CHILDREN:
            raise ValueError(
                f"a fan-out has at most {MOST_CHILDREN:,} children, not {len(self.children):,}: let some start others"
            )
        for job in (*self.children, self.then):
            if not isinstance(job, Job):
                raise TypeError(f"FanOut takes jobs, not {type(job).__name__}")


class Anew(FanOut):
    """Complete the event and store its successor, ``then``; see :meth:`Context.continue_as_new`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Await:
    """Park the event until its answer comes (:meth:`surelane.Queue.answer_event`). It expires after ``until``."""

    name: ClassVar = "await"
    until: datetime

    def __post_init__(self) -> None:
        moment(self.until)


@dataclass(frozen=True, slots=True)
class Wait:
    """A sleep or a wait that suspends a handler. ``nth`` is 1 for the first of this name."""

    sort: str
    name: str
    nth: int
    seconds: float | None
    """Until it ends by itself; ``None``: never."""
    blocking: bool
    """Whether the event's group waits for it."""


@dataclass(frozen=True, slots=True)
class Suspend:
    """Put the event off until the first of its waits ends. The attempt does not count.

    ``ctx.sleep``, ``ctx.wait_for`` and ``ctx.ask`` cause it.
    """

    name: ClassVar = "suspend"
    waits: tuple[Wait, ...]

    @property
    def blocking(self) -> bool:
        """Whether the event's group waits for one of them."""
        return any(wait.blocking for wait in self.waits)


COMPLETE = Complete()
"""The outcome of an attempt without a result: nearly every one."""

Outcome = Complete | Fail | Retry | Snooze | Discard | Release | Elsewhere | FanOut | Await | Suspend | Undone


def outcome_of(returned: object) -> Outcome:
    """Return the outcome that a handler's return value stands for: a value that is none is a result."""
    if returned is None:
        return COMPLETE
    return returned if isinstance(returned, Outcome) else Complete(returned)


duration = parse_duration


def positive(name: str, given: Pause) -> timedelta:
    """Return a pause that is longer than nothing. A :class:`ValueError` begins with ``name``."""
    try:
        parsed = duration(given)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if not parsed:
        raise ValueError(f"{name} must be positive")
    return parsed


def moment(until: object) -> datetime:
    """Return a time in UTC. Refuse other types, times without a time zone, and years beyond 9999."""
    if not isinstance(until, datetime):
        raise TypeError(f"a datetime is needed, not {type(until).__name__}")
    if until.utcoffset() is None:
        raise ValueError(f"{until!r} has no time zone")
    try:
        return until.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{until!r} is out of range") from None


JITTER = 0.1
"""Events that failed together are spread over ±10 %."""
LONGEST_BACKOFF = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pauses between attempts: ``base`` after the first, at most ``cap``."""

    base: timedelta
    cap: timedelta

    def pause(self, attempt: int) -> float:
        """Return the seconds until the attempt that follows number ``attempt``; 1 is the first."""
        wanted = self.base.total_seconds() * max(attempt, 1) ** 2
        jittered = wanted * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - no secret
        return min(jittered, self.cap.total_seconds())


def backoff_of(first: Pause) -> Backoff:
    """Return the pauses that begin with ``first``. None is longer than an hour, or than the first."""
    base = duration(first)
    return Backoff(base, max(base, LONGEST_BACKOFF))
