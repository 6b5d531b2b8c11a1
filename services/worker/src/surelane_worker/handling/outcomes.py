"""Outcomes: how an attempt ended. A handler may return one, or it follows from what the handler returned or raised.

Each class below is the one entry of an outcome: its name, what ``agent.settle`` records it as and gets with it, what of
that is encrypted, and what follows. :data:`OUTCOMES` lists them. A test compares it with ``agent.settle``.
"""

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from surelane.codec import ENCRYPTED, ERROR, RESULT, Codec, Location
from surelane.jobs import Continuation, Job, job_text, jobs_text
from surelane_service.common.durations import parse_duration
from surelane_worker.handling.records import message_of, result_text

Pause = timedelta | float | str
"""A duration: a timedelta, seconds, or text such as ``"90s"`` or ``"2m"``. At most 3,650 days."""
Seals = Mapping[str, str]
"""The fields of an argument that are encrypted, each with what it is; ``""`` is the whole argument.

It is a ``result``, an ``error``'s record, a ``reason``, a ``job`` or a list of ``jobs``.
"""


class Outcome:
    """How an attempt ended: one of :data:`OUTCOMES`.

    Attributes:
        name: its name in logs and spans.
        settled: the outcome of ``agent.settle`` that records it.
        seals: what of its argument is encrypted, where events are.
        ends_followers: whether the events that one run handled together end with it.
        of_one: whether it is an outcome of a single event, and of no group.
        goes_on: whether the next events of its group may follow at once.
    """

    __slots__ = ()
    name: ClassVar[str]
    settled: ClassVar[str]
    seals: ClassVar[Seals] = {}
    ends_followers: ClassVar[bool] = True
    of_one: ClassVar[bool] = False

    @property
    def goes_on(self) -> bool:
        return True

    def argument(self) -> str | None:
        """Return what ``agent.settle`` gets besides, as JSON text."""
        return None


@dataclass(frozen=True, slots=True)
class Complete(Outcome):
    """Complete the event. ``result``, anything JSON can hold, is kept in history."""

    name = settled = "complete"
    seals: ClassVar[Seals] = {"": "result"}
    result: Any = None

    def argument(self) -> str | None:
        return result_text(self.result)


class Failure(Outcome):
    """A failed attempt. The runner makes its argument, with the record of the error.

    Attributes:
        raised: what the error's record is about.
        why: its message; ``None``: that of the exception.
        pause: seconds until another attempt; ``None``: those of the handler's backoff.
        final: the reason, for history, why no further attempt follows.
        told: what the log says.
    """

    __slots__ = ()
    settled = "fail"
    seals: ClassVar[Seals] = {"error": "error", "reason": "reason"}
    told: ClassVar[str]

    @property
    def raised(self) -> object:
        return self

    @property
    def why(self) -> str | None:
        return None

    @property
    def pause(self) -> float | None:
        return None

    @property
    def final(self) -> str | None:
        return None


@dataclass(frozen=True, slots=True)
class Fail(Failure):
    """Fail the attempt with the exception that the handler raised. Another attempt follows if any remain."""

    name = "fail"
    told = "handler failed"
    error: BaseException

    @property
    def raised(self) -> object:
        return self.error


@dataclass(frozen=True, slots=True)
class Retry(Failure):
    """Fail the attempt; the next one comes after ``after`` if any remain. The event's group waits for it."""

    name = "retry"
    told = "handler asked for another attempt"
    after: Pause
    reason: str = "retry requested"

    def __post_init__(self) -> None:
        duration(self.after)

    @property
    def why(self) -> str:
        return message_of(self.reason)

    @property
    def pause(self) -> float:
        return duration(self.after).total_seconds()


@dataclass(frozen=True, slots=True)
class Discard(Failure):
    """End the event as failed, even if attempts remain. ``reason``, a few words, is kept in history."""

    name = "discard"
    told = "event discarded"
    reason: str

    @property
    def why(self) -> str:
        return message_of(self.reason)

    @property
    def final(self) -> str:
        return self.why


@dataclass(frozen=True, slots=True)
class Undone(Outcome):
    """End the event with the outcome that it had before its undos. A handler does not return it."""

    name = "undone"
    settled = Failure.settled
    ends_followers = False

    def argument(self) -> str:
        return json.dumps({"error": None, "final": True})


@dataclass(frozen=True, slots=True)
class Release(Outcome):
    """Return the event to the queue at once. The attempt does not count."""

    name = settled = "release"


@dataclass(frozen=True, slots=True)
class Snooze(Outcome):
    """Put the event off for ``pause``. The attempt does not count, and its group's other events go on meanwhile."""

    name = settled = "snooze"
    ends_followers = False
    pause: Pause

    def __post_init__(self) -> None:
        duration(self.pause)

    def argument(self) -> str:
        return json.dumps({"pause": duration(self.pause).total_seconds()})


@dataclass(frozen=True, slots=True)
class Held(Outcome):
    """As :class:`Snooze`, but the event's group waits behind it. A handler does not return it.

    Attributes:
        begun: whether a handler began; else the attempt does not count for a limit either.
        version: gives the event to workers that have the version under which its run began.
    """

    name = settled = Snooze.settled
    ends_followers = False
    pause: Pause
    begun: bool = True
    version: str | None = None

    @property
    def goes_on(self) -> bool:
        return self.version is None

    def argument(self) -> str:
        given: dict[str, object] = {"pause": duration(self.pause).total_seconds(), "blocking": True}
        if not self.begun:
            given["begun"] = False
        return json.dumps(given if self.version is None else given | {"version": self.version})


MOST_CHILDREN = 10_000
"""Children of one fan-out. More would take longer than the database gives a statement."""


@dataclass(frozen=True, slots=True)
class FanOut(Outcome):
    """Complete the event and store its children, and ``then``, which runs once when all of them have ended.

    One transaction does both, so a repeated attempt starts no job twice. There are at most 10,000 children.
    """

    name = settled = "fan_out"
    seals: ClassVar[Seals] = {"children": "jobs", "continuation": "job", "result": "result"}
    of_one = True
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

    def argument(self) -> str:
        jobs, last, kept = jobs_text(self.children), job_text(self.then), result_text(self.result) or "null"
        return f'{{"children": {jobs}, "continuation": {last}, "result": {kept}}}'


class Anew(FanOut):
    """Complete the event and store its successor, ``then``; see :meth:`Context.continue_as_new`."""

    __slots__ = ()

    @property
    def goes_on(self) -> bool:
        return False

    def argument(self) -> str:
        return f'{super().argument()[:-1]}, "anew": true}}'


@dataclass(frozen=True, slots=True)
class Await(Outcome):
    """Park the event until its answer comes (:meth:`surelane.Queue.answer_event`). It expires after ``until``."""

    name = settled = "await"
    until: datetime

    def __post_init__(self) -> None:
        moment(self.until)

    def argument(self) -> str:
        return json.dumps({"until": moment(self.until).isoformat()})


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
class Suspend(Outcome):
    """Put the event off until the first of its waits ends. The attempt does not count.

    ``ctx.sleep``, ``ctx.wait_for`` and ``ctx.ask`` cause it.
    """

    name = settled = "suspend"
    waits: tuple[Wait, ...]

    @property
    def blocking(self) -> bool:
        """Whether the event's group waits for one of them."""
        return any(wait.blocking for wait in self.waits)

    @property
    def goes_on(self) -> bool:
        return not self.blocking

    def argument(self) -> str:
        sent = ("sort", "name", "nth", "seconds")
        waits = [{field: getattr(wait, field) for field in sent} for wait in self.waits]
        return json.dumps({"waits": waits, "blocking": self.blocking})


class Together(Outcome):
    """One of the others, with which the events that were handled together end. Only the settler uses it."""

    __slots__ = ()
    name = settled = "coalesce"

    @staticmethod
    def given(outcome: str, argument: str | None, followers: Sequence[Sequence[int]]) -> str:
        """Return its argument. ``followers``: ids and claims."""
        with_it = json.dumps([list(each) for each in followers])
        return f'{{"outcome": "{outcome}", "argument": {argument or "null"}, "followers": {with_it}}}'


_ALL: Sequence[type[Outcome]] = (
    *(Complete, Fail, Retry, Discard, Undone, Release, Snooze, FanOut, Await, Suspend, Together),
)
OUTCOMES = {each.name: each for each in _ALL}
"""Each outcome by its name."""
_WORD = re.compile(r"[a-z_]{1,60}")
"""A reason that a program gave. It stays in the clear."""


async def sealed_argument(codec: Codec, identity: int, outcome: str, argument: str) -> str:
    """Return an outcome's argument, JSON text, as it is stored where events are encrypted.

    Raises:
        SealedError: it cannot be encrypted now.
    """
    seals = OUTCOMES[outcome].seals
    if "" in seals:
        return await codec.seal(argument, Location(identity, RESULT))
    given = json.loads(argument)
    for field, sort in seals.items():
        if given.get(field) is not None:
            given[field] = await _sealed(codec, identity, sort, given[field])
    return json.dumps(given)


async def _sealed(codec: Codec, identity: int, sort: str, value: Any) -> Any:
    match sort:
        case "result":
            return json.loads(await codec.seal(json.dumps(value), Location(identity, RESULT)))
        case "error":
            return await codec.seal_error(value, Location(identity, ERROR))
        case "reason":
            return value if _WORD.fullmatch(value) else ENCRYPTED
        case "job":
            return {**value, "payload": await codec.seal_payload(value["payload"], of=identity)}
    return [await _sealed(codec, identity, "job", job) for job in value]


COMPLETE = Complete()
"""The outcome of an attempt without a result: nearly every one."""


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
    return Backoff(base, max(base, timedelta(hours=1)))
